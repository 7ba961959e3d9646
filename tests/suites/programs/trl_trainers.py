"""trl's trainers over a small model of random weights: SFT, DPO, KTO, reward, GRPO, RLOO, with and without accumulation and checkpoints."""

import pytest
import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast

WORDS = [f"w{i}" for i in range(40)]
VOCABULARY = {w: i for i, w in enumerate(["<pad>", "<unk>", "<s>", "</s>", *WORDS])}
CONFIG = dict(vocab_size=len(VOCABULARY), hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, pad_token_id=0, bos_token_id=2,
              eos_token_id=3)


def tokenizer():
    made = Tokenizer(WordLevel(VOCABULARY, unk_token="<unk>"))
    made.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def text(seed, most=8):
    draw = torch.Generator().manual_seed(seed)
    return " ".join(WORDS[int(i)] for i in torch.randint(0, 40, (int(torch.randint(3, most, (1,), generator=draw)),), generator=draw))


def options(config, folder, more):
    wanted = dict(output_dir=str(folder), per_device_train_batch_size=4, max_steps=2, logging_steps=1, report_to=[], save_strategy="no", use_cpu=True, bf16=False, learning_rate=1e-3, disable_tqdm=True,
                  gradient_checkpointing=False)
    return config(**wanted | more)


WAYS = {"plain": {}, "accumulate": {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}, "checkpoint": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
        "reentrant": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}}


def causal():
    return LlamaForCausalLM(LlamaConfig(**CONFIG))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["sft", "completion", "packing", "dpo", "ipo", "hinge", "kto", "reward"])
def test_trainer(kind, way, tmp_path):
    more = dict(WAYS[way])
    pairs = Dataset.from_list([{"prompt": text(i), "chosen": " " + text(i + 100), "rejected": " " + text(i + 200)} for i in range(16)])
    if kind == "sft":
        trainer = trl.SFTTrainer(causal(), args=options(trl.SFTConfig, tmp_path, more), train_dataset=Dataset.from_list([{"text": text(i, 20)} for i in range(16)]), processing_class=tokenizer())
    elif kind == "completion":
        trainer = trl.SFTTrainer(causal(), args=options(trl.SFTConfig, tmp_path, more), train_dataset=Dataset.from_list([{"prompt": text(i), "completion": " " + text(i + 50)} for i in range(16)]),
                                 processing_class=tokenizer())
    elif kind == "packing":
        trainer = trl.SFTTrainer(causal(), args=options(trl.SFTConfig, tmp_path, more | {"packing": True, "max_length": 16}), train_dataset=Dataset.from_list([{"text": text(i, 20)} for i in range(32)]),
                                 processing_class=tokenizer())
    elif kind in ("dpo", "ipo", "hinge"):
        trainer = trl.DPOTrainer(causal(), ref_model=causal(), args=options(trl.DPOConfig, tmp_path, more | {"loss_type": "sigmoid" if kind == "dpo" else kind}), train_dataset=pairs, processing_class=tokenizer())
    elif kind == "kto":
        rows = Dataset.from_list([{"prompt": text(i), "completion": " " + text(i + 100), "label": i % 2 == 0} for i in range(16)])
        trainer = trl.KTOTrainer(causal(), ref_model=causal(), args=options(trl.KTOConfig, tmp_path, more), train_dataset=rows, processing_class=tokenizer())
    else:
        model = LlamaForSequenceClassification(LlamaConfig(**CONFIG, num_labels=1))
        trainer = trl.RewardTrainer(model, args=options(trl.RewardConfig, tmp_path, more), train_dataset=pairs, processing_class=tokenizer())
    trainer.train()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["grpo", "rloo"])
def test_online(kind, way, tmp_path):
    config, trainer = {"grpo": (trl.GRPOConfig, trl.GRPOTrainer), "rloo": (trl.RLOOConfig, trl.RLOOTrainer)}[kind]
    more = dict(WAYS[way]) | {"num_generations": 2, "max_completion_length": 6}
    trainer(causal(), reward_funcs=lambda completions, **_: [float(len(c)) for c in completions], args=options(config, tmp_path, more),
            train_dataset=Dataset.from_list([{"prompt": text(i)} for i in range(16)]), processing_class=tokenizer()).train()
