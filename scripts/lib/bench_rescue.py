"""A steady rescued step against the accumulation loop that one would write by hand, with the same micro-batch. Markdown to stdout."""

import argparse

from bench import Pair, Worker, machine

FAMILIES = [  # name, what it is, rows, micro-batch
    ("mlp", "MLP (examples/digits_mlp)", 4096, 512),
    ("cnn", "CNN (examples/digits_cnn)", 1024, 128),
    ("gpt", "GPT (examples/char_gpt)", 64, 8),
    ("lstm", "LSTM (examples/text_lstm)", 256, 32),
]
MIB = 2 ** 20


def smallest_budget(name, rows, micro_batch, hand_peak):
    """The smallest budget, in steps of 2%, at which a few steps train."""
    for percent in range(90, 200, 2):
        budget = hand_peak * percent // 100
        worker = Worker(KOILA_MODE="rescue", KOILA_CPU_MEMORY=f"{budget}B", KOILA_LOG="off")
        try:
            worker.run(f"step:{name}:{rows}", 3)
            return percent / 100
        except ValueError:  # it died: no answer
            continue
        finally:
            worker.process.stderr = None
            try:
                worker.close()
            except BrokenPipeError:
                pass
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--family", action="append", choices=[family[0] for family in FAMILIES])
    parser.add_argument("--smallest", action="store_true", help="also look for the smallest budget that trains (minutes)")
    args = parser.parse_args()

    print(f"{machine()}. Pairs of steps in turn, medians of {args.rounds}.\n")
    extra = " smallest budget / by hand |" if args.smallest else ""
    print("| model | rows | micro-batch | unsplit ms | by hand ms | koila ms | koila / by hand | quartiles | unsplit peak MiB | by hand MiB "
          f"| koila MiB | koila / by hand |{extra}")
    print("|---" * (13 if args.smallest else 12) + "|")
    for name, text, rows, micro_batch in FAMILIES:
        if args.family and name not in args.family:
            continue
        unsplit_name, by_hand_name = f"step:{name}:{rows}", f"step:{name}:{rows}:{micro_batch}"
        plain, counted = Worker(), Worker(KOILA_MODE="track")
        koila = Worker(KOILA_MODE="rescue", KOILA_MICROBATCH=str(micro_batch))
        unsplit = sorted(plain.run(unsplit_name)[0] for _ in range(5))[2]
        unsplit_peak = counted.run(unsplit_name)[1]
        hand_peak = counted.run(by_hand_name)[1]
        koila_peak = koila.run(unsplit_name)[1]
        result = Pair(lambda: plain.run(by_hand_name)[0], lambda: koila.run(unsplit_name)[0], args.rounds)
        a, b = result.medians
        low, high = result.spread
        line = (f"| {text} | {rows} | {micro_batch} | {unsplit * 1e3:.0f} | {a * 1e3:.0f} | {b * 1e3:.0f} | **{result.ratio:.3f}** | "
                f"{low:.3f} to {high:.3f} | {unsplit_peak / MIB:.1f} | {hand_peak / MIB:.1f} | {koila_peak / MIB:.1f} | "
                f"**{koila_peak / hand_peak:.3f}** |")
        for worker in (plain, counted, koila):
            worker.close()
        if args.smallest:
            line += f" {smallest_budget(name, rows, micro_batch, hand_peak)} |"
        print(line, flush=True)


if __name__ == "__main__":
    main()
