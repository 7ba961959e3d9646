"""What holders.py says of the classic ways to keep a tensor, in plain Python; under the preload: tests/e2e/test_leaks.py."""

import pathlib
import subprocess
import sys
import textwrap

import pytest

SNIPPET = pathlib.Path(__file__).parents[2] / "torchglue" / "leaks" / "holders.py"

PRELUDE = f"""
import gc, sys, types, collections, weakref
import torch

def holder_of(impl, **limits):
    # As holders.cc does: a namespace of its own, and nothing of it stays.
    namespace = {{"modules": sys.modules}}
    exec(compile(open({str(SNIPPET)!r}).read(), "<koila>", "exec"), namespace)
    namespace.update(limits)
    known = namespace["survey"]().split()
    assert str(impl) in known, (impl, known)
    answer = namespace["name_of"]({{impl}})
    namespace.clear()
    return answer

def ask(impl):
    print(holder_of(impl))
"""


# Programs come on a line each, run in a child of their own: torch is imported once.
SERVER = """
import os, runpy, sys, torch
for line in sys.stdin:
    if os.fork() == 0:
        out = os.open(line.strip() + ".out", os.O_CREAT | os.O_WRONLY)
        os.dup2(out, 1)
        os.dup2(out, 2)
        runpy.run_path(line.strip(), run_name="__main__")
        sys.stdout.flush()
        os._exit(0)
    print(os.wait()[1], flush=True)
"""


@pytest.fixture(scope="module")
def server():
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def answer_to(tmp_path: pathlib.Path, server):
    def run(program: str) -> list[str]:
        script = tmp_path / "train.py"
        script.write_text(PRELUDE + textwrap.dedent(program))
        server.stdin.write(f"{script}\n")
        server.stdin.flush()
        status = server.stdout.readline().strip()
        text = pathlib.Path(f"{script}.out").read_text()
        assert status == "0", text
        return text.splitlines()

    return run


CASES = {
    "a list of the function that trains": (
        """
        def train():
            outputs = []
            for _ in range(3):
                outputs.append(torch.ones(3))
                impl = outputs[0]._cdata
            ask(impl)
        train()
        """,
        "`outputs` (a list of 3), a local variable of train() at train.py:{def train}",
    ),
    "a running total": (
        """
        def train():
            total = torch.ones(1)
            ask(total._cdata)
        train()
        """,
        "`total`, a local variable of train() at train.py:{def train}",
    ),
    "a list of the module": ("outputs = [torch.ones(3), torch.ones(3)]\nask(outputs[1]._cdata)\n", "`outputs` (a list of 2), a variable of train.py"),
    "a cache of another module": (
        """
        helper = types.ModuleType("helper")
        helper.__file__ = "/somewhere/helper.py"
        helper.cache = {"a": (torch.ones(3), 7)}
        sys.modules["helper"] = helper
        del helper
        ask(sys.modules["helper"].cache["a"][0]._cdata)
        """,
        "`cache` (a dict of 1), a variable of helper.py",
    ),
    "an attribute": (
        """
        class Trainer:
            def __init__(self):
                self.history = []
            def step(self):
                self.history.append({"out": torch.ones(3)})
                ask(self.history[0]["out"]._cdata)
        Trainer().step()
        """,
        "`history` (a list of 1), an attribute of a Trainer (__main__)",
    ),
    "an attribute, once its dict exists": (
        """
        class Trainer:
            pass
        def make():
            trainer = Trainer()
            trainer.__dict__["last"] = torch.ones(3)
            return trainer, trainer.last._cdata
        def run(trainers):
            ask(trainers[0][1])
        run([make()])
        """,
        "`last`, an attribute of a Trainer (__main__)",
    ),
    "an attribute with a slot": (
        """
        class Trainer:
            __slots__ = ("empty", "history")
        def make():
            trainer = Trainer()
            trainer.history = collections.deque([torch.ones(3)])
            return trainer, trainer.history[0]._cdata
        def run(trainers):
            ask(trainers[0][1])
        run([make()])
        """,
        "`history` (a deque of 1), an attribute of a Trainer (__main__)",
    ),
    "an attribute of a class": (
        """
        class Trainer:
            history = [torch.ones(3)]
        ask(Trainer.history[0]._cdata)
        """,
        "`history` (a list of 1), an attribute of the class Trainer (__main__)",
    ),
    "a hook's closure": (
        """
        def watch(model):
            kept = []
            def hook(module, inputs, output):
                kept.append(output)
            model.register_forward_hook(hook)
        model = torch.nn.Linear(2, 2)
        watch(model)
        model(torch.ones(1, 2))
        hook = next(iter(model._forward_hooks.values()))
        impl = hook.__closure__[0].cell_contents[0]._cdata
        del hook
        ask(impl)
        """,
        "`kept` (a list of 1), in the closure of {watch}hook() at train.py:{def hook}",
    ),
    "a default argument": (
        """
        def collect(x, seen=[]):
            seen.append(x)
            return x._cdata
        ask(collect(torch.ones(3)))
        """,
        "a default argument (a list of 1) of collect() at train.py:{def collect}",
    ),
    "a generator that waits": (
        """
        def batches():
            batch = torch.ones(3)
            yield batch._cdata
            yield 1
        def run(waiting):
            ask(next(waiting[0]))
        run([batches()])
        """,
        "a local variable of batches() at train.py:{def batches}",
    ),
    "a tensor that only C++ code holds": (
        """
        x = torch.ones(3, requires_grad=True)
        class Keep:
            pass
        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.extra = x.detach() * 2
                Square.impl = ctx.extra._cdata
                return x * x
            @staticmethod
            def backward(ctx, grad):
                return grad
        y = Square.apply(x)
        ask(Square.impl)
        """,
        "`extra`, an attribute of a SquareBackward (torch.autograd.function)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_names_what_holds_a_tensor(answer_to, case: str) -> None:
    program, expected = CASES[case]
    lines = (PRELUDE + textwrap.dedent(program)).splitlines()
    for part in expected.split("{")[1:]:
        name = part.split("}")[0]
        if name.startswith("def "):
            number = next(i for i, line in enumerate(lines, 1) if line.strip().startswith(name + "("))
            expected = expected.replace("{" + name + "}", str(number))
    qualified = "watch." if sys.version_info >= (3, 11) else ""
    assert answer_to(program) == [expected.replace("{watch}", qualified)]


def test_nothing_found(answer_to) -> None:
    assert answer_to("t = torch.ones(3)\nimpl = t._cdata\nbox = iter([t])\ndel t\nask(impl)\n") == [""]


def test_walks_through_so_many_objects_and_no_more(answer_to) -> None:
    """What is known by then is said."""
    program = """
    class Trainer:
        pass
    def train(trainer):
        trainer.last = torch.ones(3)
        near = torch.ones(3)
        for limits in ({}, {"WALKED_AT_MOST": 0}):
            print("last" in holder_of(trainer.last._cdata, **limits), "near" in holder_of(near._cdata, **limits))
    train(Trainer())
    """
    assert answer_to(program) == ["True True", "False True"]


def test_leaves_nothing_behind(answer_to) -> None:
    """Not in the frames whose locals it read, nor in what locals() and exec put there, nor as garbage."""
    program = """
    class Noisy:
        def __getattribute__(self, name):
            print("read", name)
            return object.__getattribute__(self, name)
        def __del__(self):
            print("deleted")
    class Lazy(types.ModuleType):
        def __getattr__(self, name):
            print("asked for", name)
    sys.modules["lazy"] = Lazy("lazy")

    def train():
        first = 1
        kept = locals()
        kept["mine"] = 1
        outputs = [torch.ones(3)]
        noisy = Noisy()
        noisy_list = [noisy]
        gone = weakref.ref(outputs[0])
        holder_of(outputs[0]._cdata)
        assert kept["mine"] == 1 and kept["first"] == 1
        kept.clear()
        del outputs
        print("tensor gone", gone() is None)
        del noisy, noisy_list

    def runs_code():
        exec("written = 5")
        outputs = [torch.ones(3)]
        gone = weakref.ref(outputs[0])
        holder_of(outputs[0]._cdata)
        del outputs
        print("tensor gone", gone() is None)
        exec("print('exec', written)") if sys.version_info < (3, 13) else print("exec 5")

    class Odd:
        __slots__ = ("held",)
        @property
        def __dict__(self):
            print("asked for its attributes")
            return {}

    def middle():
        inner = torch.ones(3)
        gone = weakref.ref(inner)
        below(inner._cdata)
        del inner
        print("middle gone", gone() is None)

    def below(impl):
        holder_of(impl)
        odd = Odd()
        odd.held = [torch.ones(3)]
        hidden = [iter([odd])]
        impl = odd.held[0]._cdata
        del odd
        assert "`held`" in holder_of(impl), holder_of(impl)

    train()
    runs_code()
    middle()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(5):
        t = [torch.ones(3)]
        holder_of(t[0]._cdata)
        del t
    gc.collect()
    print("objects", len(gc.get_objects()) - before, gc.garbage)
    """
    lines = answer_to(program)
    assert lines[:2] == ["tensor gone True", "deleted"]
    assert lines[2:5] == ["tensor gone True", "exec 5", "middle gone True"]
    word, more, garbage = lines[5].split(" ", 2)
    assert int(more) <= 10 and garbage == "[]"


def test_asks_no_tensor_for_its_memory(answer_to) -> None:
    """Neither a subclass nor a mode is asked, and no operator runs."""
    program = """
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, f, kinds, args=(), kwargs=None):
            print("function", f)
            return super().__torch_function__(f, kinds, args, kwargs or {})
    class Function(TorchFunctionMode):
        def __torch_function__(self, f, kinds, args=(), kwargs=None):
            print("mode", f)
            return f(*args, **(kwargs or {}))
    class Operator(TorchDispatchMode):
        def __torch_dispatch__(self, f, kinds, args=(), kwargs=None):
            print("operator", f)
            return f(*args, **(kwargs or {}))
    plain = torch.ones(3)
    impl = plain._cdata
    loud = torch.ones(3).as_subclass(Loud)
    with Operator(), Function():
        ask(impl)
    """
    assert answer_to(program) == ["`plain`, a variable of train.py"]
