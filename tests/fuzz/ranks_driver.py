"""scripts/fuzz --ranks 2: programs for two ranks, both plain, and then with koila on one or both. See docs/fuzzing.md."""

import collections
import json
import os
import random
import tempfile
import time

import fuzz_driver
from fuzz_compare import Reference
from fuzz_driver import Gone, Worker
from ranks_generate import IMPORTS, RankProgram
from verdict import Setting

TURN = 40  # programs in one environment
fuzz_driver.PATIENCE = max(fuzz_driver.PATIENCE, 180)


class Ranks:
    """Two processes, and koila in those of `koila`."""

    def __init__(self, koila=(), environment=None):
        self.workers = [Worker(environment if rank in koila else None, script="ranks_worker.py", arguments=[str(rank)], more={"GLOO_SOCKET_IFNAME": "lo"}) for rank in range(2)]

    def run(self, program, settings):
        """By rank: the answers, and how the child ended."""
        with tempfile.TemporaryDirectory(prefix="koila-fuzz-") as folder:
            for worker in self.workers:
                worker.send(program, settings, os.path.join(folder, "store"))
            return [worker.answer() for worker in self.workers]

    def end(self):
        for worker in self.workers:
            worker.end()


def settings(choices):
    """The first is free, and tells what the program takes."""
    begin = choices.choice((0, 0, 1))
    return [Setting(), Setting(inject=f"nth:{choices.randrange(1, 60)}", begin=begin), Setting(budget=choices.uniform(0.5, 0.99), begin=begin)]


def judged(plain, answers, tried, koila):
    """A list of (kind, what it was): exact, refused, or what is wrong, for each setting in which both ranks have something to say."""
    found = []
    for i, setting in enumerate(tried):
        got = [answers[rank][0][i] if i < len(answers[rank][0]) else None for rank in range(2)]
        refused = any(one and one[0] == "oom" for rank, one in enumerate(got) if rank in koila)
        bad = None
        for rank, one in enumerate(got):
            ended = answers[rank][1]
            if ended != "ended" and not refused:
                bad = bad or (ended.split(":")[0], f"rank {rank}: {ended}")
            elif one is None or one[0] == "error" and not (refused and rank not in koila):
                bad = bad or (None if refused else ("error", f"rank {rank}: {one[1] if one else 'nothing came'}"))
            elif one[4] > 0:
                bad = bad or ("over", f"rank {rank}: by {one[4]} bytes")
            if one:
                worst = plain[rank].differences(one[2], all_of_them=one[0] == "ok")
                if worst and worst[0][0] > plain[rank].precision.tolerance and not (refused and rank not in koila):
                    bad = ("wrong", f"rank {rank}: " + "; ".join(f"{key} {far:.2g}" for far, key in worst[:6]))
        found.append((bad[0], f"{setting}: {bad[1]}") if bad else ("refused" if refused else "exact", str(setting)))
        if bad or refused:
            break
    return found


def script(program, title):
    return f'"""Found by scripts/fuzz --ranks 2: {title}\n\nrun(RANK) in two processes, and compare what they print.\n"""\n\n{IMPORTS}\n\n{program.source()}\n\n' \
           'def run(rank):\n    from notes import Printed\n    dist.init_process_group("gloo", init_method="file:///tmp/ranks", rank=rank, world_size=2)\n    program(Printed())\n\n\n' \
           'if __name__ == "__main__":\n    import sys\n    run(int(sys.argv[1]))\n'


def fuzz(seeds, environments, until, counts, folder, say, koila_of=None):
    """(verdicts by kind, operators by name, what was found, programs)"""
    verdicts, operators, found, programs = collections.Counter(), collections.Counter(), [], 0
    plain = Ranks()
    seeds = iter(seeds)
    seed = next(seeds, None)
    while seed is not None and time.monotonic() < until:
        environment = next(environments)
        koila = koila_of or random.Random(seed).choice(((0,), (1,), (0, 1)))
        under_koila, taken = Ranks(koila, environment), 0
        while seed is not None and taken < TURN and time.monotonic() < until:
            program, tried = RankProgram(seed), settings(random.Random(seed + 1))
            expected = plain.run(program, tried[:1])
            first = [answers[0] for answers, _ in expected if answers]
            if len(first) < 2 or any(one[0] != "ok" for one in first):
                verdicts["of no use"] += 1
                say(f"seed {seed} is of no use: {[one[1] for one in first if one[0] != 'ok'] or [ended for _, ended in expected]}")
                seed = next(seeds, None)
                continue
            references = [Reference(one[2]) for one in first]
            try:
                judgement = judged(references, under_koila.run(program, tried), tried, koila)
            except Gone as gone:
                judgement = [(str(gone), "a process that forks")]
            programs, taken = programs + 1, taken + 1
            operators.update(program.operators)
            verdicts.update(kind for kind, _ in judgement)
            for kind, detail in judgement:
                if kind not in ("exact", "refused") and counts(kind):
                    title = f"{kind}, koila on ranks {list(koila)}, {json.dumps(environment)}: {detail}"
                    say(f"FOUND seed {seed}: {title}")
                    found.append((seed, kind, detail))
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / f"ranks-{seed}-{kind.split(':')[0]}.py").write_text(script(program, title.replace('"', "'")))
            seed = next(seeds, None)
            if judgement[-1][1] == "a process that forks":
                break
        under_koila.end()
    plain.end()
    return verdicts, operators, found, programs
