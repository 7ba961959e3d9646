"""Lightning's Trainer and Fabric, with each of their ways to step."""

import lightning
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset


class Module(lightning.LightningModule):
    def __init__(self, how="adamw", batch_norm=False, two=False, scheduler=False):
        super().__init__()
        self.how, self.scheduler = how, scheduler
        self.net = torch.nn.Sequential(torch.nn.Linear(9, 16), *([torch.nn.BatchNorm1d(16)] if batch_norm else []), torch.nn.GELU(), torch.nn.Linear(16, 4))
        self.automatic_optimization = not two
        self.two = two

    def loss(self, batch):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def training_step(self, batch, number):
        loss = self.loss(batch)
        self.log("train", loss)
        if self.two:
            first, second = self.optimizers()
            for optimizer in (first, second):
                self.toggle_optimizer(optimizer)
                loss = self.loss(batch)
                optimizer.zero_grad()
                self.manual_backward(loss)
                self.clip_gradients(optimizer, 0.5, "norm")
                optimizer.step()
                self.untoggle_optimizer(optimizer)
            return None
        return loss

    def validation_step(self, batch, number):
        self.log("validation", self.loss(batch))

    def configure_optimizers(self):
        if self.two:
            return [torch.optim.SGD(self.net[0].parameters(), lr=0.1), torch.optim.Adam(self.net[-1].parameters(), lr=1e-2)]
        made = {"adamw": lambda p: torch.optim.AdamW(p, lr=1e-2), "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=3),
                "rprop": torch.optim.Rprop}[self.how](self.parameters())
        if self.scheduler:
            return {"optimizer": made, "lr_scheduler": torch.optim.lr_scheduler.OneCycleLR(made, 0.1, total_steps=20)}
        return made


def data(rows=24, batch=8):
    return DataLoader(TensorDataset(torch.randn(rows, 9), torch.randint(0, 4, (rows,))), batch_size=batch)


TRAINERS = {
    "plain": {}, "accumulate": {"accumulate_grad_batches": 2}, "clip norm": {"gradient_clip_val": 0.3}, "clip value": {"gradient_clip_val": 0.05, "gradient_clip_algorithm": "value"},
    "accumulate and clip": {"accumulate_grad_batches": 3, "gradient_clip_val": 0.3}, "anomalies": {"detect_anomaly": True}, "overfit": {"overfit_batches": 1}, "validate often": {"val_check_interval": 1},
    "averaging": {"callbacks": "average"}, "fast": {"fast_dev_run": 2}, "bf16": {"precision": "bf16-mixed"}, "double": {"precision": "64-true"}, "inference": {"inference_mode": False},
}
MODULES = {"adamw": {}, "sgd": {"how": "sgd"}, "lbfgs": {"how": "lbfgs"}, "batch norm": {"batch_norm": True}, "two": {"two": True}, "scheduler": {"scheduler": True}, "rprop": {"how": "rprop"}}


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_fit(trainer, module, tmp_path):
    options = dict(TRAINERS[trainer])
    if options.get("callbacks"):
        options["callbacks"] = [lightning.pytorch.callbacks.StochasticWeightAveraging(swa_lrs=0.05, swa_epoch_start=1)]
    made = Module(**MODULES[module])
    lightning.Trainer(max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", default_root_dir=tmp_path,
                      **options).fit(made, data(), data(8))


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("clip", [None, "norm", "value"])
def test_fabric(precision, accumulate, clip):
    fabric = lightning.Fabric(accelerator="cpu", devices=1, precision=precision)
    net = torch.nn.Sequential(torch.nn.Linear(9, 16), torch.nn.LayerNorm(16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=1e-2))
    for number, (x, y) in enumerate(fabric.setup_dataloaders(data())):
        with fabric.no_backward_sync(model, enabled=accumulate and number % 2 == 0):
            fabric.backward(torch.nn.functional.cross_entropy(model(x), y))
        if accumulate and number % 2 == 0:
            continue
        if clip:
            fabric.clip_gradients(model, optimizer, **({"max_norm": 0.3} if clip == "norm" else {"clip_val": 0.05}))
        optimizer.step()
        optimizer.zero_grad()
