"""A U-Net trained by Lightning's Trainer, as its users write it: the loop, clipping, accumulation and the log of the loss are the Trainer's own. In
double precision, so that what it logs and leaves can be compared.

    python tests/e2e/trainers/by_lightning.py --save OUT
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import real_models

real_models.torchvision_on_cpu()

import lightning  # noqa: E402


class Segmenting(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.unet = real_models.GroupNormUnet(3, 4)

    def training_step(self, batch, batch_index):
        x, y = batch
        logits = self.unet(x)
        loss = F.cross_entropy(logits, y)
        self.log("loss", loss)
        self.log("right", (logits.argmax(1) == y).double().mean())
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, eps=1e-4)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8), "interval": "step"}}


class Metrics(lightning.Callback):
    def __init__(self):
        self.seen = {"loss": [], "right": []}

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        for name, values in self.seen.items():
            values.append(trainer.callback_metrics[name].item())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", required=True)
    parser.add_argument("--accumulate", type=int, default=1)
    args = parser.parse_args()
    lightning.seed_everything(0, verbose=False)
    torch.set_default_dtype(torch.float64)
    data = torch.utils.data.TensorDataset(torch.randn(160, 3, 16, 16), torch.randint(4, (160, 16, 16)))
    loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
    model, metrics = Segmenting(), Metrics()
    trainer = lightning.Trainer(accelerator="cpu", max_steps=4, accumulate_grad_batches=args.accumulate, gradient_clip_val=0.5, logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False, callbacks=[metrics])
    trainer.fit(model, loader)
    torch.save({"losses": metrics.seen["loss"], "right": metrics.seen["right"], "parameters": dict(model.named_parameters())}, args.save)


if __name__ == "__main__":
    main()
