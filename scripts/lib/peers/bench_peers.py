"""koila beside what a user would take instead: the same work, the same budgets, every alternative, in fresh processes in turn. Results are kept in .cache/peers and gone on
with; when all are there, the generated parts of docs/comparison.md and README.md and the picture are written."""

import argparse
import datetime
import json
import subprocess
import sys
import time

import machinery
import measure
import tables
from bench import LIBRARY, ROOT, machine
from alternatives import ALONE, PACKAGES, WAYS

# As published, on GPUs: name, batch or input over the largest that fits, throughput over plain's there (None: not given in these terms).
PUBLISHED = {
    "resnet": [("DTR, ResNet-1202", 2.19, 1.12), ("Checkmate", 5.1, None), ("Capuchin", 7.0, None), ("out-of-core scheduling", 7.5, 0.55)],
    "transformer": [("DTR, transformer", 3.0, 0.92)],
}
CURVE_TITLES = {"resnet": "ResNet of 38 convolutions, batch norm", "transformer": "transformer of 6 layers"}


def lines_changed():
    """way -> work -> lines, counted by the alternatives' own Python, which has torch."""
    program = "import json, sys; sys.path.insert(0, sys.argv[1]); import ways; print(json.dumps([ways.changed_lines(getattr(ways, a), getattr(ways, b)) for a, b in json.loads(sys.argv[2])]))"
    pairs = {(way, work): (chosen.function(work), WAYS["plain"].function(work)) for way, chosen in WAYS.items() for work in tables.TITLES if chosen.does(work)}
    done = subprocess.run([machinery.PYTHON, "-c", program, str(machinery.HERE), json.dumps(list(pairs.values()))], capture_output=True, text=True, check=True)
    return dict(zip(pairs, json.loads(done.stdout)))


def plain_seconds(measurement, work, block):
    """Plain's epoch, beside what was measured with that share or factor."""
    return tables.step_seconds([measurement.plain(work, f"{block}/{number}", which) for number in range(measurement.rounds) for which in (0, 1)])


def entries(measurement, works, ways, lines):
    """What tables.py makes its tables of."""
    found = {}
    for work in works:
        plain = [plain_seconds(measurement, work, share) for share in measure.SHARES]
        found[work] = {}
        for way in (way for way in ways if WAYS[way].does(work)):
            rounds = [[measurement.speed(work, way, share, number) for number in range(measurement.rounds)] for share in measure.SHARES]
            found[work][way] = {"lines": lines[way, work], "shares": measure.SHARES, "speed": [results[0] for results in rounds], "seconds": [tables.step_seconds(results) for results in rounds],
                                "plain": plain, "errors": [measurement.errors(work, way, share) for share in (*measure.SHARES, None)], "largest": measurement.largest(work, way)}
    return found


def curves(measurement, works):
    """work -> way -> factor -> throughput over plain's on the batch that fits."""
    found = {CURVE_TITLES[work]: {way: {} for way in measure.CURVE_WAYS} for work in works}
    for work in works:
        for factor in measure.FACTORS:
            plain, rows = plain_seconds(measurement, work, factor), round(measure.ROWS[work] * factor)
            for way in measure.CURVE_WAYS:
                results = [measurement.curve(work, way, factor, number) for number in range(measurement.rounds)]
                seconds = tables.step_seconds([result for result in results if result["outcome"] == "ok"])
                found[CURVE_TITLES[work]][way][factor] = plain / seconds * rows / measure.ROWS[work] if seconds else None
    return found


def header(rounds):
    return {"fingerprint": measure.fingerprint(LIBRARY), "date": datetime.date.today().isoformat(), "machine": machine(), "rounds": rounds}


def said_of_the_run(head):
    """Machine, date and versions, for the page."""
    names = ", ".join(name.replace("==", " ") for name in PACKAGES + ALONE if name.split("==")[0] not in ("numpy", "matplotlib", "scipy", "pynvml", "opt-einsum"))
    return [f"{head['date']}, {head['machine']}; rounds: {head['rounds']}. {names}.", ""]


def write_pages(found, curve, head):
    page = ROOT / "docs" / "comparison.md"
    body = said_of_the_run(head) + [line for work, ways in found.items() for line in tables.work_table(work, measure.ROWS[work], ways, measure.MOST)]
    errors = tables.refusals(found)
    body += ["Errors that are no out-of-memory:", "", *errors, ""] if errors else []
    text = tables.between_markers(page.read_text(), "tables", body)
    text = tables.between_markers(text, "absent", tables.absent())
    text = tables.between_markers(text, "curve", tables.curve_table(curve, measure.FACTORS))
    page.write_text(text)
    readme = ROOT / "README.md"
    readme.write_text(tables.between_markers(readme.read_text(), "comparison", tables.short_table(found)))
    data = {"curve": curve, "titles": {way: WAYS[way].title.replace("*", "").replace("`", "") for way in measure.CURVE_WAYS},
            "published": {CURVE_TITLES[work]: points for work, points in PUBLISHED.items()}}
    subprocess.run([machinery.PYTHON, machinery.HERE / "curve.py", ROOT / "docs" / "comparison.svg"], input=json.dumps(data), text=True, check=True)


def parsed():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="processes for each timing, in turn (default 1); what is there is kept when more are asked for")
    parser.add_argument("--work", action="append", choices=list(tables.TITLES), help="only these; the tables are printed, and no page is written")
    parser.add_argument("--way", action="append", choices=list(WAYS), help="likewise")
    parser.add_argument("--fresh", action="store_true", help="measure everything anew")
    return parser.parse_args()


def main():
    args = parsed()
    machinery.set_up()
    path = machinery.CACHE / "results.jsonl"
    if args.fresh:
        path.unlink(missing_ok=True)
    results, servers, began = machinery.Results(path, header(args.rounds)), machinery.Servers(), time.monotonic()
    measurement = measure.Measurement(servers, results, args.rounds)
    works, ways = args.work or list(tables.TITLES), args.way or list(WAYS)

    def progress(what):
        print(f"{time.monotonic() - began:5.0f} s  {what}", file=sys.stderr, flush=True)
    try:
        measurement.table(works, ways, progress)
        found = entries(measurement, works, ways, lines_changed())
        for work, rows in found.items():
            print("\n".join(tables.work_table(work, measure.ROWS[work], rows, measure.MOST)))
        print("\n".join([*tables.refusals(found), "", *tables.short_table(found), ""]))
        if not args.work and not args.way:
            measurement.curves(list(CURVE_TITLES), progress)
            curve = curves(measurement, list(CURVE_TITLES))
            print("\n".join(tables.curve_table(curve, measure.FACTORS)))
            write_pages(found, curve, results.header | {"rounds": args.rounds})
    finally:
        servers.stop()


if __name__ == "__main__":
    main()
