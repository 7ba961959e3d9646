"""One task in the foreground, for a debugger: LD_PRELOAD and KOILA_* as given. Compares with plain PyTorch.

    KOILA_MODE=rescue KOILA_MICROBATCH=3 python tests/e2e/one.py gpt --optimizer adamw
    KOILA_MODE=rescue KOILA_GDB=1 python tests/e2e/one.py cnn --inject nth:17

koila is preloaded unless KOILA_MODE is not set. `--list` names the families.
"""

import argparse
import ast
import dataclasses
import os
import pickle
import subprocess
import sys
import tempfile

import harness


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", nargs="?")
    for field in dataclasses.fields(harness.Case)[1:]:
        name = "--" + field.name.replace("_", "-")
        if field.type in (bool, "bool"):
            parser.add_argument(name, action="store_true")
        else:
            parser.add_argument(name, type=type(field.default), default=field.default)
    parser.add_argument("--budget", type=ast.literal_eval, help="bytes, or '[(step, bytes), ...]'")
    parser.add_argument("--inject")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--child", metavar="OUT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.list or not args.family:
        print("\n".join(harness.families()))
        return
    case = harness.Case(**{field.name: getattr(args, field.name) for field in dataclasses.fields(harness.Case)})

    if args.child:
        import job
        job.prepare(args.family)
        with open(args.child, "wb") as file:
            pickle.dump(job.run(dataclasses.asdict(case), args.budget, args.inject), file)
        return

    koila = {k: v for k, v in os.environ.items() if k.startswith("KOILA_") and k not in ("KOILA_GDB", "KOILA_LIBRARY")}
    environment = harness.clean_environment({})
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "result")
        command = [sys.executable, __file__, *sys.argv[1:], "--child", out]
        if koila:
            koila = {"LD_PRELOAD": str(harness.LIBRARY), "KOILA_REPORT": "off", **koila}
            if os.environ.get("KOILA_GDB"):
                settings = [part for k, v in koila.items() for part in ("-ex", f"set environment {k} {v}")]
                command = ["gdb", "-q", *settings, "-ex", "run", "--args", *command]
            else:
                environment.update(koila)
        code = subprocess.call(command, env=environment)
        if code or not os.path.exists(out):
            sys.exit(f"the run ended with {code}")
        with open(out, "rb") as file:
            found = pickle.load(file)
    print(f"outcome {found['outcome']} {found['message']}")
    if found["outcome"] == "error":
        print(found["traceback"])
    if found["peak"] is not None:
        print(f"peak {found['peak']:,} B  fixed {found['fixed']:,} B  allocations {found['allocations']}  live {found['live']}")
    for event in (found["report"] or {}).get("oom_events", [])[:10]:
        print("  ", event)
    if found["outcome"] == "ok":
        expected = harness.plain(case)
        print("worst relative error %.3g at %s" % harness.worst(expected.arrays, found["arrays"]))
        for _, name, text in harness.differences(expected.arrays, found["arrays"], case.tolerance)[:20]:
            print(f"  {name}: {text}")
    harness.stop_servers()


if __name__ == "__main__":
    main()
