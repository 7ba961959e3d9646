"""A steady step that is cut into stages (a ResNet with batch norm, a CLIP) against the whole step, and against GradCache's way by hand, with the
same micro-batch. Markdown to stdout."""

import argparse

from bench import Pair, Worker, machine

STEPS = [  # what it is, the step, micro-batch, what it is measured against: (name, workload)
    ("ResNet with batch norm", "step:resnet:128", 16, [("plain", "step:resnet:128")]),
    ("CLIP, two towers", "step:clip:512", 64, [("plain", "step:clip:512"), ("GradCache by hand", "cached:clip:512:64")]),
]
SHARES = [None, 0.5, 0.25, 0.15]  # budgets as shares of plain's peak; None: unlimited
MIB = 2 ** 20


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()

    print(f"{machine()}. Pairs of steps in turn, medians of {args.rounds}.\n")
    print("| step | micro-batch | budget, of plain's peak | against | its ms | koila ms | koila / it | quartiles | its peak MiB | koila peak MiB |")
    print("|---" * 10 + "|")
    for text, workload, micro_batch, others in STEPS:
        plain, counted = Worker(), Worker(KOILA_MODE="track")
        peak = counted.run(workload)[1]
        for share in SHARES:
            budget = {} if share is None else {"KOILA_CPU_MEMORY": f"{int(share * peak)}B", "KOILA_LOG": "off"}
            # Below a budget koila finds its own size.
            koila = Worker(KOILA_MODE="rescue", **budget, **({"KOILA_MICROBATCH": str(micro_batch)} if share is None else {}))
            koila_peak = koila.run(workload)[1]
            for name, other in others:
                other_peak = counted.run(other)[1]
                result = Pair(lambda: plain.run(other)[0], lambda: koila.run(workload)[0], args.rounds)
                low, high = result.spread
                a, b = result.medians
                print(f"| {text} | {micro_batch if share is None else 'its own'} | {'none' if share is None else f'{share:.0%}'} | {name} | {a * 1e3:.0f} | "
                      f"{b * 1e3:.0f} | **{result.ratio:.2f}** | {low:.2f} to {high:.2f} | {other_peak / MIB:.1f} | {koila_peak / MIB:.1f} |", flush=True)
            koila.close()
        plain.close()
        counted.close()


if __name__ == "__main__":
    main()
