"""A Llama-shaped model of 4-bit weights (bitsandbytes), adapters of PEFT and gradient checkpointing, fine-tuned by Hugging Face's Trainer.

    python tests/e2e/trainers/four_bit.py --save OUT
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import real_models

real_models.torchvision_on_cpu()

import bitsandbytes as bnb  # noqa: E402
from peft import LoraConfig, get_peft_model  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments  # noqa: E402

from hugging_face import Sentences  # noqa: E402


def in_four_bits(module):
    """Every linear layer but the head."""
    for name, child in module.named_children():
        if isinstance(child, torch.nn.Linear) and name != "lm_head":
            layer = bnb.nn.Linear4bit(child.in_features, child.out_features, bias=False, compute_dtype=torch.float32, quant_type="nf4")
            layer.weight = bnb.nn.Params4bit(child.weight.data, requires_grad=False, quant_type="nf4")
            setattr(module, name, layer.to("cpu"))
        else:
            in_four_bits(child)
    return module


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", required=True)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--checkpoints", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=100, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    model = in_four_bits(LlamaForCausalLM(config))
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]))
    if args.checkpoints:
        model.enable_input_require_grads()
    arguments = TrainingArguments(output_dir=str(Path(args.save).with_suffix("")), use_cpu=True, per_device_train_batch_size=32, gradient_checkpointing=args.checkpoints,
                                  gradient_accumulation_steps=args.accumulate, max_steps=3, learning_rate=1e-3, adam_epsilon=1e-3, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, seed=3)
    trainer = Trainer(model=model, args=arguments, train_dataset=Sentences(96))
    trainer.train()
    torch.save({"losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
                "norms": [float(entry["grad_norm"]) for entry in trainer.state.log_history if "grad_norm" in entry],
                "parameters": {name: p for name, p in model.named_parameters() if p.requires_grad}}, args.save)


if __name__ == "__main__":
    main()
