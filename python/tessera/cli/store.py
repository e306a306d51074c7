"""`tessera store`: results of others, received with distrust, and results for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import click
from rich.table import Column, Table

from tessera.cli import common
from tessera.errors import IoError, NotFoundError
from tessera.options import Options
from tessera.store.entry import KINDS, Entry, RefusedError, newer
from tessera.store.ranking import rank_of, ranks, to_drop
from tessera.store.receive import Claim, Received, own_texts, proved, receive
from tessera.store.stores import Store, existing_store, local_store, open_store
from tessera.types import Record

kind_option = click.option("--kind", type=click.Choice(KINDS), help="Only entries of this kind.")


@click.group()
def store() -> None:
    """Proved results to share: nothing that comes from a store is trusted.

    \b
    A STORE is
      a folder                a file for each entry; made to be kept in git
      sqlite:FILE             one file
      redis://HOST:PORT/0     a server of Redis
      s3://BUCKET/FOLDER      whatever fsspec opens (pip install 'tessera-opt[store]')
    Without STORE: the results of this machine, in the cache folder.

    \b
    Examples:
      tessera store push .tessera/store     the results of this machine, for the project's git
      tessera store pull .tessera/store     prove, compile and race what others have found
      tessera store list .tessera/store
      tessera store verify .tessera/store   is every entry what it says?
      tessera store merge a b team          two stores into a third

    TESSERA_STORES=.tessera/store:/net/team names stores that an optimisation looks into, in this
    order, where it has no result of its own; commas stand between them where one is a URL.
    """


def _store(where: str | None) -> Store:
    return existing_store(where) if where else local_store()


@store.command("list")
@click.argument("where", metavar="[STORE]", required=False)
@kind_option
@common.json_option
def list_entries(where: str | None, kind: str | None, as_json: bool) -> int:
    """List what a store has: programs with their speed-ups, rules, patterns; with --json also the
    devices they were found on.

    \b
    Examples:
      tessera store list
      tessera store list s3://team/tessera --kind program --json
    """
    known = ranks()
    rows: list[Record] = []
    for e in _store(where).list(kind):
        rows.append({"key": e.key, "kind": e.kind, "name": e.name, "level": e["level"],
                     "speedup": e.number("speedup"), "device": e["device"], "made": e["made"],
                     "origin": e["origin"], **rank_of(e, known).json()})  # fmt: skip
    if as_json:
        common.print_json({"entries": rows})
        return 0
    names = ("key", "kind", "name", "level", "speed-up", "made", "uses", "regret")
    columns = [Column(n, no_wrap=n != "name", overflow="fold") for n in names]
    table = Table(*columns, box=None, pad_edge=False)
    for r in rows:
        gain = f"{r['speedup']:.2f}x" if r["speedup"] else ""
        table.add_row(r["key"][:12], r["kind"], r["name"], r["level"], gain, r["made"],
                      str(r["uses"] or ""), f"{r['regret'] or '':.4}")  # fmt: skip
    if rows:
        common.stdout().print(table, markup=False)
    common.stdout().print(f"{len(rows)} entries")
    return 0


@store.command()
@click.argument("key")
@click.argument("where", metavar="[STORE]", required=False)
@common.json_option
def show(key: str, where: str | None, as_json: bool) -> int:
    """Show an entry, as it is kept; KEY may be its beginning."""
    found = [e for e in _store(where).list() if e.key.startswith(key)]
    if len(found) != 1:
        raise NotFoundError(f"{len(found) or 'no'} entries begin with '{key}'; see `store list`")
    if as_json:
        common.print_json(found[0].json())
    else:
        click.echo(found[0].text, nl=False)
    return 0


@store.command()
@click.argument("where", metavar="STORE")
@kind_option
@common.json_option
def push(where: str, kind: str | None, as_json: bool) -> int:
    """Copy results of this machine to STORE, with your own rules and learnt patterns.

    Entries say of which program, device and tools they are; no file names or code is in them.
    """
    to = open_store(where)
    mine = [*map(_shared, local_store().list()), *own_texts()]
    done = [_kept(to, e) for e in mine if kind in (None, e.kind)]
    return _tell(done, as_json)


@store.command()
@click.argument("where", metavar="STORE")
@kind_option
@click.option("--top", type=click.IntRange(1, 100), default=3, show_default=True, metavar="N",
              help="Entries of each program that are raced: those that promise most.")  # fmt: skip
@click.option("--budget", type=float, default=30, show_default=True, metavar="SECONDS",
              help="Wall time for the entries of one program.")  # fmt: skip
@common.json_option
def pull(where: str, kind: str | None, top: int, budget: float, as_json: bool) -> int:
    """Prove, compile, check and race here what STORE has, and keep what is faster.

    What is refused is told with the reason; exit code 1 if anything is. Of a program that was found
    on another device only the graph counts, and so it is with all recorded times.
    """
    found = _store(where)
    refused = [Received(key, "", "refused", why) for key, why in found.damaged()]
    with common.ProgressLine(not as_json) as line:
        done = refused
        for one in receive(found.list(kind), where, Options(budget=budget), top):
            done.append(one)
            if line is not None:
                line({"stage": f"{len(done)} entries"})
    return _tell(done, as_json)


@store.command()
@click.argument("where", metavar="[STORE]", required=False)
@click.option("--prove", is_flag=True, help="Make each proof again, too, which takes longer.")
@click.option("--budget", type=float, default=30, show_default=True, metavar="SECONDS",
              help="Wall time of one proof.")  # fmt: skip
@common.json_option
def verify(where: str | None, prove: bool, budget: float, as_json: bool) -> int:
    """Is every entry what it says? Seals, keys, programs, and certificates, which are replayed.

    Nothing is timed. Exit code 1 if one is not.
    """
    found = _store(where)
    options = Options(budget=budget) if prove else None
    done = [Received(key, "", "refused", why) for key, why in found.damaged()]
    done += (result for _, result in _checked(found.list(), options))
    return _tell(done, as_json)


@store.command()
@click.argument("stores", metavar="FROM... INTO", nargs=-1, required=True)
@common.json_option
def merge(stores: tuple[str, ...], as_json: bool) -> int:
    """Copy what is sound in the stores FROM into INTO; the newer stands where two have one key.

    The order of the stores changes nothing. Certificates are replayed first, nothing is timed.
    """
    *sources, into = map(open_store, stores)
    done = []
    for source in sources:
        done += [Received(key, "", "refused", why) for key, why in source.damaged()]
        for entry, result in _checked(source.list(), None):
            done.append(result if result.fate == "refused" else _kept(into, entry))
    return _tell(done, as_json)


@store.command()
@click.argument("where", metavar="[STORE]", required=False)
@click.option("--keep", type=click.IntRange(0), default=10_000, show_default=True, metavar="N",
              help="Entries that stay: those that gained most here, or promise most.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only tell what would go.")
@common.json_option
def gc(where: str | None, keep: int, dry_run: bool, as_json: bool) -> int:
    """Drop damaged entries, those that never held what they say, those that newer tools have made
    anew, and the worst beyond --keep."""
    found = _store(where)
    done = [Received(key, "", "dropped", why) for key, why in found.damaged()]
    done += [Received(e.key, e.name, "dropped", why) for e, why in to_drop(found.list(), keep)]
    return _tell(done if dry_run else [_dropped(found, one) for one in done], as_json)


def _dropped(found: Store, one: Received) -> Received:
    try:
        found.delete(one.key)
        return one
    except IoError as error:  # a folder of that name, say
        return replace(one, fate="passed over", reason=error.message)


def _shared(entry: Entry) -> Entry:
    """An entry for others, whom the places of stores here do not concern."""
    origin = "store" if entry["origin"].startswith("store: ") else entry["origin"]
    return Entry({**entry.fields, "origin": origin} if origin else entry.fields)


def _kept(to: Store, entry: Entry) -> Received:
    there = to.get(entry.key)
    if there is not None and newer(there, entry) == there:
        return Received(entry.key, entry.name, "known")
    to.put(entry)
    return Received(entry.key, entry.name, "copied")


def _checked(entries: Iterable[Entry], options: Options | None) -> Iterator[tuple[Entry, Received]]:
    for entry in entries:
        why, fate = "", "sound"
        try:
            result = Entry.parse(entry["result"]) if entry["result"] else entry
            if result.kind == "program":
                claim = Claim.of(result)
                if options is not None and result.improved:
                    why = proved(claim, options)
                elif not claim.replayed:
                    fate = "not checked"
            else:
                fate = "not checked"  # before it is used
        except RefusedError as error:
            why = error.message
        yield entry, Received(entry.key, entry.name, "refused" if why else fate, why)


def _tell(done: list[Received], as_json: bool) -> int:
    """What became of entries; 1 where some were refused."""
    counts = Counter(one.fate for one in done)
    if as_json:
        common.print_json({"entries": [one.json() for one in done], "counts": counts})
        return 1 if counts["refused"] else 0
    console = common.stdout()
    for one in done:
        if one.reason or one.measured:
            console.print(f"{one.key[:12]} {one}", markup=False)
    told = ", ".join(f"{n} {fate}" for fate, n in sorted(counts.items()))
    console.print(f"{len(done)} entries" + (f": {told}" if told else ""), markup=False)
    return 1 if counts["refused"] else 0
