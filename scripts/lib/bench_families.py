"""How much of a step's activations koila splits, for models that people train: peak memory in micro-batches of one row against plain PyTorch's, both beside
what is fixed (parameters, gradients, optimizer state, the batch), and the smallest budget that still trains. Markdown to stdout."""

import argparse
import dataclasses
import os
import sys

from bench import ROOT, machine

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import harness  # noqa: E402
from budgets import budget_of, split_share  # noqa: E402

FAMILIES = ["hf_gpt2", "hf_llama", "hf_bert", "hf_t5", "hf_vit", "hf_clip", "hf_mixtral_grouped", "torchvision_res_net", "diffusion", "dlrm"]
SHARES = [0.5, 0.2, 0.1, 0.05]
KIB = 1024


def case_of(family):
    task = harness.families()[family]
    return harness.Case(family, "sgd", dtype=getattr(task, "dtype", "float32"), steps=3)


def smallest_budget(family):
    """The smallest share of the activations, of SHARES, with which the step still trains, and to plain's numbers; None: none of them."""
    case = dataclasses.replace(case_of(family), rows=harness.families()[family].budget_rows, drops=True)
    smallest = None
    for share in SHARES:
        result = harness.run(case, "rescue", budget=budget_of(case, share), timeout=120)
        if result.outcome != "ok":
            break
        found = harness.differences(harness.plain(case).arrays, result.arrays, max(case.tolerance, 1e-6))
        assert not found, (family, share, found[:3])
        smallest = share
    return smallest


def at_full_batch(report):
    return ", ".join(f"`{op['op'].removeprefix('aten::')}` {op['bytes'] / KIB:.0f}" for op in sorted(report["full_batch_ops"], key=lambda op: -op["bytes"])) or "none"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", action="append", choices=sorted(harness.families()), help="default: ten of tests/e2e/real_models.py")
    parser.add_argument("--all", action="store_true", help="all of tests/e2e/real_models.py")
    parser.add_argument("--rows", type=int, default=1, help="of a micro-batch")
    args = parser.parse_args()
    chosen = list(harness.families("real_models")) if args.all else args.family or FAMILIES

    print(f"{machine()}. KiB beside what is fixed; the bytes of operators at full batch are those of their split arguments, over all steps.\n")
    print("| family | rows | fixed KiB | plain peak KiB | koila peak KiB, micro-batch " + str(args.rows) + " | koila / plain | share split | stages | kept between stages KiB | "
          "smallest budget, of the activations | operators at full batch, KiB |")
    print("|---" * 11 + "|")
    for family in chosen:
        split = split_share(case_of(family), args.rows)
        report = split.result.report
        smallest = smallest_budget(family)
        stages = getattr(harness.families()[family], "stages", False)
        print(f"| {family} | {split.rows} | {split.fixed / KIB:.0f} | {split.plain / KIB:.0f} | {split.koila / KIB:.0f} | {split.koila / split.plain:.3f} | **{max(split.share, 0):.0%}** | "
              f"{'yes' if stages else 'no'} | {report['devices']['cpu'].get('outside_peak_bytes', 0) / KIB:.0f} | {'none' if smallest is None else f'{smallest:.0%}'} | "
              f"{at_full_batch(report)} |", flush=True)
    harness.stop_servers()


if __name__ == "__main__":
    main()
