// A small driver for fuzz targets where libFuzzer is missing: mutates the files of a corpus for a
// given time. Usage: fuzz [-seed=N] [-max_total_time=SECONDS] [-artifact_prefix=DIR/]
// FILE|FOLDER...
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "fuzz_counters.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

constexpr unsigned kSecondsPerInput = 10;  // a slower input counts as a hang

// What the signal handler saves; plain memory because a handler may touch nothing else.
const char* current_data = nullptr;
size_t current_size = 0;
char artifact_path[4096];

void save_input() {
  const int file = open(artifact_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file >= 0) {
    const ssize_t written = write(file, current_data, current_size);
    static_cast<void>(written);
    close(file);
  }
}

void save_and_die(int signal_number) {
  save_input();
  const char* text =
      signal_number == SIGALRM ? "\nfuzz: HANG, input saved to " : "\nfuzz: CRASH, input saved to ";
  ssize_t ignored = write(2, text, std::strlen(text));
  ignored = write(2, artifact_path, std::strlen(artifact_path));
  ignored = write(2, "\n", 1);
  static_cast<void>(ignored);
  _exit(77);
}

using Rng = std::mt19937_64;

size_t below(Rng& rng, size_t n) { return n == 0 ? 0 : static_cast<size_t>(rng() % n); }

std::vector<std::string> words_of(const std::vector<std::string>& corpus) {
  std::vector<std::string> words;
  for (const std::string& text : corpus) {
    std::string word;
    for (char c : text + " ") {
      if (std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.') {
        word += c;
      } else if (!word.empty()) {
        words.push_back(word);
        word.clear();
      }
    }
  }
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  return words;
}

struct Range {
  size_t begin, end;
};

Range random_line(Rng& rng, const std::string& text) {
  const size_t at = below(rng, text.size());
  const size_t begin = at == 0 ? 0 : text.rfind('\n', at - 1) + 1;  // npos + 1 == 0
  const size_t end = text.find('\n', at);
  return {begin, end == std::string::npos ? text.size() : end + 1};
}

// A run of digits or letters somewhere in the text, empty where there is none after the pick.
Range random_word(Rng& rng, const std::string& text, bool digits) {
  auto inside = [&](size_t i) {
    const auto c = static_cast<unsigned char>(text[i]);
    return digits ? std::isdigit(c) != 0 : std::isalnum(c) != 0 || c == '_';
  };
  size_t begin = below(rng, text.size());
  while (begin < text.size() && !inside(begin)) ++begin;
  size_t end = begin;
  while (end < text.size() && inside(end)) ++end;
  return {begin, end};
}

const char* const kNumbers[] = {"0",
                                "1",
                                "2",
                                "3",
                                "7",
                                "-1",
                                "16",
                                "255",
                                "65536",
                                "2147483647",
                                "2147483648",
                                "4294967296",
                                "9223372036854775807",
                                "9223372036854775808",
                                "1e400",
                                "0.5",
                                "1/0",
                                "007"};

void mutate(Rng& rng, std::string& text, const std::vector<std::string>& corpus,
            const std::vector<std::string>& words) {
  if (text.empty()) text = corpus[below(rng, corpus.size())];
  if (text.empty()) text = "x";
  switch (rng() % 10) {
  case 0: text[below(rng, text.size())] = static_cast<char>(rng()); break;
  case 1:
    text.insert(below(rng, text.size() + 1), 1, "(){}[]<>,:=-%@\"/\n# "[below(rng, 18)]);
    break;
  case 2: text.erase(below(rng, text.size()), 1 + below(rng, 8)); break;
  case 3: {  // remove a line
    const Range line = random_line(rng, text);
    text.erase(line.begin, line.end - line.begin);
    break;
  }
  case 4: {  // repeat a line elsewhere
    const Range from = random_line(rng, text);
    const std::string copy = text.substr(from.begin, from.end - from.begin);
    text.insert(random_line(rng, text).begin, copy);
    break;
  }
  case 5: {  // another number
    const Range number = random_word(rng, text, true);
    text.replace(number.begin, number.end - number.begin,
                 kNumbers[below(rng, std::size(kNumbers))]);
    break;
  }
  case 6:
  case 7: {  // another word
    const Range word = random_word(rng, text, false);
    text.replace(word.begin, word.end - word.begin, words[below(rng, words.size())]);
    break;
  }
  case 8: {  // a line of another program
    const std::string& other = corpus[below(rng, corpus.size())];
    if (other.empty()) break;
    const Range from = random_line(rng, other);
    text.insert(random_line(rng, text).begin, other.substr(from.begin, from.end - from.begin));
    break;
  }
  default: text.resize(below(rng, text.size() + 1)); break;  // truncate
  }
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void run_one(const std::string& text) {
  current_data = text.data();
  current_size = text.size();
  alarm(kSecondsPerInput);
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  alarm(0);
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t seed = std::random_device{}();
  double seconds = 10;
  std::string prefix = "./";
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.rfind("-seed=", 0) == 0)
      seed = std::stoull(arg.substr(6));
    else if (arg.rfind("-max_total_time=", 0) == 0)
      seconds = std::stod(arg.substr(16));
    else if (arg.rfind("-artifact_prefix=", 0) == 0)
      prefix = arg.substr(17);
    else if (arg.rfind("-", 0) == 0)
      continue;  // libFuzzer flags without a meaning here
    else if (std::filesystem::is_directory(arg)) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(arg))
        if (entry.is_regular_file()) files.push_back(entry.path());
    } else {
      files.emplace_back(arg);
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> corpus;
  for (const auto& file : files) corpus.push_back(read_file(file));
  std::cout << "fuzz: seed " << seed << ", " << corpus.size() << " files, " << seconds << " s\n"
            << std::flush;
  const std::vector<std::string> words = words_of(corpus);
  if (words.empty()) {
    std::cerr << "fuzz: the corpus is empty\n";
    return 2;
  }
  std::snprintf(artifact_path, sizeof artifact_path, "%scrash-%llu.ug", prefix.c_str(),
                static_cast<unsigned long long>(seed));
  for (int s : {SIGABRT, SIGALRM}) signal(s, save_and_die);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(save_input);  // the sanitizer prints the stack of the others
  } else {
    for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) signal(s, save_and_die);
  }

  Rng rng(seed);
  for (const std::string& text : corpus) run_one(text);
  const uint64_t corpus_accepted = fuzz_counters.accepted;
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  uint64_t runs = 0;
  std::string text;
  while (Clock::now() < end) {
    // Mostly shallow mutants: deep ones die in the lexer and teach nothing.
    text = corpus[below(rng, corpus.size())];
    const size_t depth = 1 + below(rng, 1 + below(rng, 6));
    for (size_t i = 0; i < depth; ++i) mutate(rng, text, corpus, words);
    run_one(text);
    ++runs;
  }
  const uint64_t accepted = fuzz_counters.accepted - corpus_accepted;
  std::cout << "fuzz: " << runs << " mutants, " << accepted << " accepted, "
            << fuzz_counters.rejected << " rejected\n";
  if (runs > 1000 && (accepted == 0 || fuzz_counters.rejected == 0)) {
    std::cerr << "fuzz: only one side of the parser was exercised\n";
    return 1;
  }
  return 0;
}
