// Entries: texts that say what they are, for files that people and other machines read.
//
//   tessera entry 1
//   sha256 <of all that follows this line>
//   kind program
//   graph |
//     graph g { … }
//
// A field is a name, a space and a value of one line, or "name |" and lines with two spaces in
// front (or nothing in them). Each name is there once; an entry keeps the order of its fields.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

using EntryFields = std::vector<std::pair<std::string, std::string>>;

// Throws Error(BadInput) where a name is none, or there twice.
std::string print_entry(const EntryFields& fields);
// What print_entry made of it; throws Error(BadInput) that says what is wrong, at which line.
EntryFields parse_entry(std::string_view text, const std::string& file = "<entry>");
// The same; nothing where it is none.
std::optional<EntryFields> readable_entry(std::string_view text);
// The value of a field; empty where there is none.
std::string_view field_of(const EntryFields& fields, std::string_view name);

}  // namespace tessera
