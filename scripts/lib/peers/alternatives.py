"""The alternatives: what each is, with which packages and in which environment, and which work it can do."""

import dataclasses

PACKAGES = ("torch==2.13.0", "numpy==2.4.6", "transformers==5.23.0", "accelerate==1.15.0", "lightning==2.6.6", "matplotlib==3.11.2")
# These ask for another torch, or for nothing that they need here: they are installed without what they ask for.
ALONE = ("toma==1.1.0", "koila==0.1.1", "pynvml==11.5.3", "gradcache==0.0.1", "opacus==1.6.0", "opt-einsum==3.4.0", "scipy==1.17.1")

# What a user might take and what cannot be run here, with the reason.
ABSENT = (
    ("Composer (`mosaicml` 0.32.1), automatic micro-batches", "It asks for torch below 2.7.1 and torchvision below 0.22.1, and does not import beside torch 2.13. Its `device_train_microbatch_size=\"auto\"` "
     "raises a ValueError on every device but a GPU. It halves the micro-batch and runs the whole batch again, as its source has it; a failed try has moved running statistics by then."),
    ("infinitybatch", "It is in no package index, only as a repository. By its own warning it is meaningless without CUDA: it moves the outputs of a model to the CPU, and the graph of all rows stays where it was."),
    ("PyTorch's `save_on_cpu` as it is", "It keeps CPU tensors as they are, so that on a CPU it is plain PyTorch. The table has a model of it: saved tensors are copied to memory that the budget does not count, and back."),
)


@dataclasses.dataclass(frozen=True)
class Way:
    title: str
    loop: str  # function of ways.py; "": cannot
    trainer: str = ""  # the same with transformers' Trainer
    environment: str = "track"  # of ENVIRONMENTS
    imports: tuple = ()
    micro: bool = False  # somebody has to say how many rows a micro-batch has
    works: tuple = ("cnn", "gpt", "bert", "clip", "vae")
    chooses: bool = False  # it trains with another batch than was asked for
    single: bool = False  # float64 is not what it is about

    def function(self, work):
        return self.trainer if work == "bert" else self.loop

    def does(self, work):
        return work in self.works and bool(self.function(work))


ENVIRONMENTS = {
    "plain": None,  # no preload at all
    "track": {"KOILA_MODE": "track"},  # the budget, and nothing is rescued
    "pager": None,
    "koila": {},
    "koila01": {"KOILA_LADDER": "0,1"},
}

NOT_BERT = ("cnn", "gpt", "clip", "vae")
WAYS = {
    "plain": Way("plain PyTorch", "plain", "with_trainer"),
    "checkpointing": Way("activation checkpointing", "checkpointing", "with_trainer_checkpointing"),
    "save_on_cpu": Way("`save_on_cpu`, modelled", "save_on_cpu", "with_trainer_save_on_cpu"),
    "bf16": Way("bf16 autocast", "bf16", "with_trainer_bf16", single=True),
    "by_hand": Way("loop by hand", "by_hand", "with_trainer_by_hand", micro=True),
    "accelerate": Way("accelerate's `find_executable_batch_size`", "accelerate", "with_trainer_accelerate", imports=("accelerate.utils",), chooses=True),
    "lightning": Way("Lightning's batch size finder", "lightning", "lightning", imports=("lightning.pytorch", "lightning.pytorch.tuner"), chooses=True),
    "auto_find": Way("Trainer's `auto_find_batch_size`", "", "with_trainer_auto_find", works=("bert",), chooses=True),
    "toma": Way("toma", "toma", imports=("toma",), works=NOT_BERT),
    "koila_python": Way("koila in Python (0.1.1)", "koila_in_python", imports=("koila",), works=NOT_BERT),
    "grad_cache": Way("GradCache", "grad_cache", imports=("grad_cache",), micro=True, works=("clip",)),
    "opacus": Way("opacus' `BatchMemoryManager`", "opacus", imports=("opacus",), micro=True, works=NOT_BERT),
    "pager": Way("memory oversubscribed by the system", "plain", "with_trainer", environment="pager"),
    "koila01": Way("**koila**, rungs 0 and 1", "plain", "with_trainer", environment="koila01"),
    "koila": Way("**koila**", "plain", "with_trainer", environment="koila"),
}
