"""The alternatives, each as a user would write it: `plain` is the user's loop, and the others are that loop changed. The number of changed lines is counted between
the two sources (`changed_lines`), so that what stands here is what is counted; a line that ends in `# measured` belongs to the measurement."""

import difflib
import inspect
from functools import partial

import torch


def plain(job):
    model, optimizer = job.model, job.optimizer
    for batch in job.loader(job.rows):
        loss = job.loss(model, *batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def checkpointing(job):
    from torch.utils.checkpoint import checkpoint
    model, optimizer = job.model, job.optimizer
    for block in job.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    for batch in job.loader(job.rows):
        loss = job.loss(model, *batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def on_the_host(saved):
    """`save_on_cpu`, as it would be on a device: NumPy's memory stands for the host's, for CPU tensors are on the CPU already and `save_on_cpu` keeps them as they are."""
    return saved.detach().numpy().copy() if saved.dim() and not isinstance(saved, torch.nn.Parameter) else saved


def back_from_the_host(kept):
    return kept if torch.is_tensor(kept) else torch.empty(kept.shape, dtype=torch.from_numpy(kept).dtype).copy_(torch.from_numpy(kept))


def save_on_cpu(job):
    model, optimizer = job.model, job.optimizer
    for batch in job.loader(job.rows):
        with torch.autograd.graph.saved_tensors_hooks(on_the_host, back_from_the_host):
            loss = job.loss(model, *batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def bf16(job):
    model, optimizer = job.model, job.optimizer
    for batch in job.loader(job.rows):
        with torch.autocast("cpu", torch.bfloat16):
            loss = job.loss(model, *batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def by_hand(job):
    model, optimizer = job.model, job.optimizer
    for batch in job.loader(job.rows):
        optimizer.zero_grad()
        for part in zip(*(tensor.split(job.micro) for tensor in batch)):
            loss = job.loss(model, *part) * (len(part[0]) / len(batch[0]))
            loss.backward()
        optimizer.step()


def accelerate(job):
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=job.rows)
    def train(rows):
        job.measured_rows = rows  # measured
        model, optimizer = job.build()
        for batch in job.loader(rows):
            loss = job.loss(model, *batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    train()


def lightning(job):
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.tuner import Tuner

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.batch_size = job.model, 2

        def training_step(self, batch, _):
            return job.loss(self.model, *batch)

        def configure_optimizers(self):
            return job.optimizer

        def train_dataloader(self):
            return torch.utils.data.DataLoader(job.tensor_dataset(), batch_size=self.batch_size)

    module = Module()
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=job.folder)  # measured
    trainer = Trainer(accelerator="cpu", max_steps=1000, **quiet)
    job.tuning = True  # measured
    Tuner(trainer).scale_batch_size(module)
    job.tuning = False  # measured
    job.measured_rows = module.batch_size  # measured
    job.restart()  # measured
    trainer.fit(module)


def toma(job):
    from toma import toma
    model, optimizer = job.model, job.optimizer
    for batch in job.loader(job.rows):
        optimizer.zero_grad()

        @toma.execute.range(0, len(batch[0]), job.rows)
        def _(start, end):
            loss = job.loss(model, *(tensor[start:end] for tensor in batch)) * ((end - start) / len(batch[0]))
            loss.backward()
        optimizer.step()


def koila_in_python(job):
    from koila import lazy
    model, optimizer = job.model, job.optimizer
    for batch in job.loader(job.rows):
        batch = lazy(*batch, batch=0) if len(batch) > 1 else [lazy(*batch, batch=0)]
        loss = job.loss(model, *batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def grad_cache(job):
    from grad_cache import GradCache
    model, optimizer = job.model, job.optimizer
    cache = GradCache(models=job.towers, chunk_sizes=job.micro, loss_fn=job.contrastive)
    for batch in job.loader(job.rows):
        optimizer.zero_grad()
        cache(*batch)
        optimizer.step()


def opacus(job):
    from opacus import PrivacyEngine
    from opacus.utils.batch_memory_manager import BatchMemoryManager
    loader = torch.utils.data.DataLoader(job.tensor_dataset(), batch_size=job.rows)
    model, optimizer, loader = PrivacyEngine().make_private(module=job.model, optimizer=job.optimizer, data_loader=loader, noise_multiplier=0.0, max_grad_norm=1e9,
                                                            poisson_sampling=False)
    while True:
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=job.micro, optimizer=optimizer) as parts:
            for batch in parts:
                loss = job.loss(model, *batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


# ---- with transformers' Trainer ----------------------------------------------------------------------------------------------


def trainer_of(job, rows=None, **changes):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Begins(TrainerCallback):
        def on_train_begin(self, *_, **__):
            job.restart()

    class Dataset(torch.utils.data.Dataset):
        def __len__(self):
            return len(job.dataset[0])

        def __getitem__(self, i):
            return dict(zip(("input_ids", "attention_mask", "labels"), (tensor[i] for tensor in job.dataset)))

    arguments = TrainingArguments(output_dir=job.folder, per_device_train_batch_size=rows or job.rows, max_steps=1000, report_to=[], save_strategy="no", disable_tqdm=True,
                                  logging_strategy="no", use_cpu=True, max_grad_norm=0, dataloader_pin_memory=False, **changes)
    return Trainer(model=job.model, args=arguments, train_dataset=Dataset(), optimizers=(job.optimizer, torch.optim.lr_scheduler.ConstantLR(job.optimizer, 1.0)), callbacks=[Begins()])


def with_trainer(job):
    trainer = trainer_of(job)
    trainer.train()


def with_trainer_checkpointing(job):
    trainer = trainer_of(job, gradient_checkpointing=True)
    trainer.train()


def with_trainer_save_on_cpu(job):
    trainer = trainer_of(job)
    with torch.autograd.graph.saved_tensors_hooks(on_the_host, back_from_the_host):
        trainer.train()


def with_trainer_bf16(job):
    trainer = trainer_of(job, bf16=True)
    trainer.train()


def with_trainer_by_hand(job):
    trainer = trainer_of(job, rows=job.micro, gradient_accumulation_steps=job.rows // job.micro)
    trainer.train()


def with_trainer_accelerate(job):
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=job.rows)
    def train(rows):
        job.measured_rows = rows  # measured
        job.build()
        trainer = trainer_of(job, rows=rows)
        trainer.train()
    train()


def with_trainer_auto_find(job):
    trainer = trainer_of(job, auto_find_batch_size=True)
    job.trainer = trainer  # measured
    trainer.train()


# ------------------------------------------------------------------------------------------------------------------------------


def changed_lines(way, original):
    """Lines of the way's source that are not in the original's, however they are indented; the line that names the function apart."""
    def lines(function):
        source = inspect.getsource(function).splitlines()[1:]
        return [line.strip() for line in source if line.strip() and not line.rstrip().endswith("# measured") and not line.strip().startswith("#")]
    return sum(line.startswith("+ ") for line in difflib.ndiff(lines(original), lines(way)))
