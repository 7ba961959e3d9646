"""A language model trained by Hugging Face's Trainer, as its users write it: clipping, accumulation, a schedule and a log of the loss are the
Trainer's own. In double precision, so that what it logs and leaves can be compared.

    python tests/e2e/trainers/hugging_face.py --save OUT
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import real_models

real_models.torchvision_on_cpu()

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments  # noqa: E402


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count, length=32):
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(100, (count, length), generator=generator)
        self.lengths = torch.randint(length // 2, length + 1, (count,), generator=generator)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens, mask = self.tokens[index], (torch.arange(self.tokens.size(1)) < self.lengths[index]).long()
        return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", required=True)
    parser.add_argument("--accumulate", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    arguments = TrainingArguments(output_dir=str(Path(args.save).with_suffix("")), use_cpu=True, per_device_train_batch_size=32,
                                  gradient_accumulation_steps=args.accumulate, max_steps=4, learning_rate=1e-3, adam_epsilon=1e-4, warmup_steps=1,
                                  logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, seed=3)
    trainer = Trainer(model=model, args=arguments, train_dataset=Sentences(160))
    trainer.train()
    torch.save({"losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
                "norms": [float(entry["grad_norm"]) for entry in trainer.state.log_history if "grad_norm" in entry],
                "parameters": dict(model.named_parameters())}, args.save)


if __name__ == "__main__":
    main()
