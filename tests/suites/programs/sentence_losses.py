"""Every loss of sentence-transformers over a small encoder of random weights."""

import inspect

import pytest
import torch
from sentence_transformers import SentenceTransformer, losses, models
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

WORDS = [f"w{i}" for i in range(40)]


@pytest.fixture
def encoder(tmp_path):
    vocabulary = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]").save_pretrained(tmp_path)
    BertModel(BertConfig(vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, max_position_embeddings=32)).save_pretrained(tmp_path)
    transformer = models.Transformer(str(tmp_path), max_seq_length=16)
    return SentenceTransformer(modules=[transformer, models.Pooling(transformer.get_word_embedding_dimension() if hasattr(transformer, "get_word_embedding_dimension") else 16)], device="cpu").double()


def texts(rows, seed):
    draw = torch.Generator().manual_seed(seed)
    return [" ".join(WORDS[int(i)] for i in torch.randint(0, 40, (int(torch.randint(2, 9, (1,), generator=draw)),), generator=draw)) for _ in range(rows)]


ROWS = 6
CLASSES = {name: cls for name, cls in vars(losses).items() if inspect.isclass(cls) and issubclass(cls, torch.nn.Module)}
LABELS = {"classes": lambda: torch.arange(ROWS) % 3, "scores": lambda: torch.rand(ROWS), "binary": lambda: torch.arange(ROWS) % 2, "none": lambda: None, "vectors": lambda: torch.randn(ROWS, 16)}


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("name", CLASSES)
def test_loss(name, labels, columns, encoder):
    cls = CLASSES[name]
    wanted = inspect.signature(cls.__init__).parameters
    given = {}
    for key, value in {"loss": lambda: losses.MultipleNegativesRankingLoss(encoder), "sentence_embedding_dimension": lambda: 16, "embedding_dimension": lambda: 16, "num_labels": lambda: 3, "guide": lambda: encoder,
                       "matryoshka_dims": lambda: [16, 8, 4], "mini_batch_size": lambda: 2}.items():
        if key in wanted and (wanted[key].default is inspect.Parameter.empty or key == "mini_batch_size"):
            given[key] = value()
    loss = cls(encoder, **given)
    optimizer = torch.optim.AdamW(loss.parameters(), lr=1e-3)
    for step in range(2):
        features = [encoder.tokenize(texts(ROWS, 10 * step + column)) for column in range(columns)]
        value = loss(features, LABELS[labels]())
        if isinstance(value, dict):
            value = sum(value.values())
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
