"""Checks what it is told to on standard input, one JSON object a line, and answers one a line: a process with koila preloaded, which may crash."""

import dataclasses
import json
import sys
import warnings

import torch

import calls
import check
import registry


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    databases = {"operator": (calls.operators(), calls.of_operator), "module": (calls.modules(), calls.of_module), "kernel": (registry.sources(), registry.of_kernel)}
    answer = lambda **fields: print("@" + json.dumps(fields), flush=True)
    answer(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        infos, samples = databases[order["kind"]]
        info = infos[order["name"]]
        picked = order.get("samples")
        try:
            for number, call in enumerate(samples(order["name"], info, getattr(torch, order["dtype"]), picked)):
                if number < order.get("from", 0):
                    continue
                answer(begin=call.title, number=number)
                verdicts = check.check(call)
                if order["kind"] == "kernel":
                    verdicts += check.check_failures(call)
                answer(call=call.title, sample=call.sample, variant=call.variant, verdicts=[dataclasses.asdict(v) for v in verdicts])
        except Exception as error:
            answer(failed=f"{type(error).__name__}: {error}"[:300])
        answer(done=True)


if __name__ == "__main__":
    main()
