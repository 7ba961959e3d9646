"""Models that people train, from the libraries that they take them from: built from a configuration, with random weights, small. And the
steps around them that are a kind of their own: diffusion, a GAN, several tasks, graphs, recommendation.

The libraries are imported when a family is built, so that other tests do not wait for them.
"""

import functools
import importlib
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from task import Task, family


class Real(Task):
    steps = 3
    budget_rows = 64
    learning_rate = {"sgd": 0.02, "adamw": 1e-3}
    dtype = "float64"  # where the library has no single precision inside
    stages = False  # True: batch norm or the like cuts the step, and what lies between is kept
    # Operators that have no rule yet, or whose rule says no.
    at_full_batch = frozenset()


@functools.cache
def torchvision_on_cpu():
    """torchvision beside a torch of another build: its compiled operators do not load, and none of its classifiers needs them. It only wants
    those declared that it describes to the compiler."""
    for name in ("nms", "qnms"):
        try:
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        except RuntimeError:
            pass  # it has them
    import torchvision
    return torchvision


# ---- Hugging Face, which takes torchvision where there is one ----------------------------------------------------------------


def hugging_face(name):
    """A class of transformers by its module and name: "gpt2.GPT2Config"."""
    module, attribute = name.split(".")
    kind = "configuration" if attribute.endswith("Config") else "modeling"
    return getattr(importlib.import_module(f"transformers.models.{module}.{kind}_{module}"), attribute)


def lengths_mask(rows, length):
    """Rows of unequal length, padded on the right: int64 as a tokenizer gives it."""
    return (torch.arange(length) < torch.randint(length // 2, length + 1, (rows, 1))).long()


class HuggingFace(Real):
    config_class = model_class = None
    config = {}
    length = 12
    vocabulary = 50

    def model(self):
        # The classes set up a generator of their own for nothing; weights come from the global one.
        return hugging_face(self.model_class)(hugging_face(self.config_class)(**self.config))

    def __init_subclass__(cls):
        super().__init_subclass__()
        if cls.model_class:
            module = cls.model_class.split(".")[0]
            cls.imports = ("real_models:torchvision_on_cpu", f"transformers.models.{module}.modeling_{module}", f"transformers.models.{module}.configuration_{module}")

    def tokens(self, rows, length=None):
        return torch.randint(3, self.vocabulary - 1, (rows, length or self.length))

    def loss(self, model, *data):
        return model(**dict(zip(self.names, data))).loss


class CausalLanguageModel(HuggingFace):
    names = "input_ids", "attention_mask", "labels"

    def data(self, rows):
        tokens, mask = self.tokens(rows), lengths_mask(rows, self.length)
        return tokens, mask, tokens.masked_fill(mask == 0, -100)


class ImageClassifier(HuggingFace):
    names = "pixel_values", "labels"
    size = 16
    classes = 5

    def data(self, rows):
        return torch.randn(rows, 3, self.size, self.size), torch.randint(self.classes, (rows,))


@family
class HfGpt2(CausalLanguageModel):
    config_class, model_class = "gpt2.GPT2Config", "gpt2.GPT2LMHeadModel"
    config = dict(vocab_size=50, n_positions=16, n_embd=24, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


@family
class HfGpt2Eager(HfGpt2):
    """Attention in plain operators, and each block checkpointed."""

    config = HfGpt2.config | dict(attn_implementation="eager")

    def model(self):
        model = super().model()
        model.gradient_checkpointing_enable()
        return model


@family
class HfLlama(CausalLanguageModel):
    config_class, model_class = "llama.LlamaConfig", "llama.LlamaForCausalLM"
    config = dict(vocab_size=50, hidden_size=24, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                  max_position_embeddings=32)


BERT = dict(vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, max_position_embeddings=16,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


@family
class HfBert(HuggingFace):
    """Masked language model: the loss over a seventh of the tokens, by ignore_index."""

    config_class, model_class = "bert.BertConfig", "bert.BertForMaskedLM"
    config = BERT
    names = "input_ids", "attention_mask", "token_type_ids", "labels"

    def data(self, rows):
        tokens, mask = self.tokens(rows), lengths_mask(rows, self.length)
        chosen = (torch.rand(rows, self.length) < 0.15) & (mask == 1)
        chosen[0, 0] = True
        kinds = (torch.arange(self.length) >= self.length // 2).long().expand(rows, -1).clone()
        return tokens.masked_fill(chosen, 2), mask, kinds, tokens.masked_fill(~chosen, -100)


@family
class HfBertSelected(HfBert):
    """The head runs on the masked tokens only: their number depends on the data."""

    at_full_batch = {"index"}

    def loss(self, model, tokens, mask, kinds, labels):
        hidden = model.bert(tokens, attention_mask=mask, token_type_ids=kinds).last_hidden_state
        chosen = labels != -100
        return F.cross_entropy(model.cls(hidden[chosen]), labels[chosen])


@family
class HfT5(HuggingFace):
    config_class, model_class = "t5.T5Config", "t5.T5ForConditionalGeneration"
    config = dict(vocab_size=50, d_model=24, d_kv=12, d_ff=48, num_layers=2, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0,
                  feed_forward_proj="gated-gelu")
    names = "input_ids", "attention_mask", "labels"

    def data(self, rows):
        return self.tokens(rows), lengths_mask(rows, self.length), self.tokens(rows, 8).masked_fill(lengths_mask(rows, 8) == 0, -100)


@family
class HfVit(ImageClassifier):
    config_class, model_class = "vit.ViTConfig", "vit.ViTForImageClassification"
    config = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, image_size=16, patch_size=4,
                  hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=5)


@family
class HfSwin(ImageClassifier):
    """Windows are folded into the batch dimension, and shifted by a roll."""

    config_class, model_class = "swin.SwinConfig", "swin.SwinForImageClassification"
    config = dict(image_size=16, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=4, drop_path_rate=0.0,
                  hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=5)


@family
class HfConvNext(ImageClassifier):
    config_class, model_class = "convnext.ConvNextConfig", "convnext.ConvNextForImageClassification"
    config = dict(num_channels=3, patch_size=2, num_stages=2, hidden_sizes=[12, 24], depths=[2, 2], drop_path_rate=0.0, image_size=16, num_labels=5)


@family
class HfClip(HuggingFace):
    """Both towers, and the loss over all pairs of the batch."""

    config_class, model_class = "clip.CLIPConfig", "clip.CLIPModel"
    config = dict(text_config=dict(vocab_size=50, hidden_size=24, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                                   max_position_embeddings=12, eos_token_id=49, bos_token_id=0, pad_token_id=1),
                  vision_config=dict(hidden_size=24, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=4),
                  projection_dim=12)
    names = "input_ids", "attention_mask", "pixel_values"

    def data(self, rows):
        tokens, mask = self.tokens(rows), lengths_mask(rows, self.length)
        tokens[torch.arange(rows), mask.sum(1) - 1] = 49  # the end of the text is what is pooled
        return tokens, mask, torch.randn(rows, 3, 16, 16)

    def loss(self, model, *data):
        return model(**dict(zip(self.names, data)), return_loss=True).loss


@family
class HfWhisper(HuggingFace):
    config_class, model_class = "whisper.WhisperConfig", "whisper.WhisperForConditionalGeneration"
    config = dict(vocab_size=50, num_mel_bins=6, d_model=24, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
                  encoder_ffn_dim=48, decoder_ffn_dim=48, max_source_positions=16, max_target_positions=12, pad_token_id=0, bos_token_id=1,
                  eos_token_id=2, decoder_start_token_id=1, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0)
    names = "input_features", "labels"

    def data(self, rows):
        return torch.randn(rows, 6, 32), self.tokens(rows, 8).masked_fill(lengths_mask(rows, 8) == 0, -100)


@family
class HfMixtral(CausalLanguageModel):
    """Each token goes to two of four experts: how many an expert gets depends on the data; their load is balanced over the batch. What chooses
    them is in single precision."""

    tolerance_in_double = 1e-6
    config_class, model_class = "mixtral.MixtralConfig", "mixtral.MixtralForCausalLM"
    config = HfLlama.config | dict(num_local_experts=4, num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.1,
                                   experts_implementation="eager")
    at_full_batch = {"gt", "index_add_", "mul", "nonzero", "scatter_add_", "split"}


@family
class HfMixtralGrouped(HfMixtral):
    """As it comes: tokens are sorted by their expert, for one grouped matrix product, which has no double precision."""

    config = {k: v for k, v in HfMixtral.config.items() if k != "experts_implementation"}
    dtype = "float32"
    at_full_batch = {"_grouped_mm", "_scaled_dot_product_flash_attention_for_cpu", "cumsum", "histc", "index_put_", "mul", "scatter_add_", "sort"}  # mul: 32 bytes


@family
class HfMamba(CausalLanguageModel):
    """The library's own state space model, as it runs without its kernels, its scan in single precision."""

    tolerance_in_double = 1e-6
    config_class, model_class = "mamba.MambaConfig", "mamba.MambaForCausalLM"
    config = dict(vocab_size=50, hidden_size=16, state_size=4, num_hidden_layers=2, conv_kernel=4, expand=2)
    names = "input_ids", "labels"
    length = 8

    def data(self, rows):
        tokens = self.tokens(rows)
        return tokens, tokens


# ---- torchvision and timm ----------------------------------------------------------------------------------------------------


class Pictures(Real):
    size = 24
    classes = 5
    imports = ("real_models:torchvision_on_cpu",)

    def data(self, rows):
        return torch.randn(rows, 3, self.size, self.size), torch.randint(self.classes, (rows,))

    def loss(self, model, x, y):
        return F.cross_entropy(model(x), y)


@family
class TorchvisionResNet(Pictures):
    """ResNet-18's stem and first two stages: the other two hold ten times the parameters."""

    stages = True
    at_full_batch = {"add_"}  # to the branch that was normalised a stage before the other was

    def model(self):
        model = torchvision_on_cpu().models.resnet18(num_classes=self.classes)
        model.layer3 = model.layer4 = nn.Identity()
        model.fc = nn.Linear(128, self.classes)
        return model


class Timm(Pictures):
    stages = True
    imports = ("real_models:torchvision_on_cpu", "timm")
    architecture = ""
    config = {}

    def model(self):
        torchvision_on_cpu()
        import timm
        return timm.create_model(self.architecture, num_classes=self.classes, **self.config)


@family
class TimmEfficientNet(Timm):
    """The smallest of the family: blocks with and without expansion, squeeze and excitation, batch norm throughout."""

    architecture = "test_efficientnet"
    config = dict(drop_rate=0.0, drop_path_rate=0.0)


@family
class TimmMobileNet(Timm):
    architecture = "mobilenetv3_small_050"
    config = dict(drop_rate=0.0)


# ---- sequences ---------------------------------------------------------------------------------------------------------------


class SelectiveScan(nn.Module):
    """A block of Mamba (Gu and Dao, 2023), its scan a loop over time."""

    def __init__(self, width, inner, state):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.enter = nn.Linear(width, 2 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, 4, groups=inner, padding=3)
        self.select = nn.Linear(inner, 2 * state + 1)
        self.step = nn.Linear(1, inner)
        self.a = nn.Parameter(torch.log(torch.arange(1, state + 1).to(torch.get_default_dtype())).repeat(inner, 1))
        self.d = nn.Parameter(torch.ones(inner))
        self.leave = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        rows, length, _ = x.shape
        u, gate = self.enter(self.norm(x)).chunk(2, dim=-1)
        u = F.silu(self.conv(u.transpose(1, 2))[:, :, :length]).transpose(1, 2)
        b, c, delta = self.select(u).split([self.a.size(1), self.a.size(1), 1], dim=-1)
        delta = F.softplus(self.step(delta))
        decay = torch.exp(delta.unsqueeze(-1) * -torch.exp(self.a))
        enters = (delta * u).unsqueeze(-1) * b.unsqueeze(2)
        state = x.new_zeros(rows, u.size(2), b.size(2))
        out = []
        for t in range(length):
            state = decay[:, t] * state + enters[:, t]
            out.append(torch.einsum("bds,bs->bd", state, c[:, t]))
        y = torch.stack(out, dim=1) + u * self.d
        return x + self.leave(y * F.silu(gate))


@family
class MambaScan(Real):
    def model(self):
        return nn.Sequential(nn.Embedding(40, 16), SelectiveScan(16, 24, 4), SelectiveScan(16, 24, 4), nn.LayerNorm(16), nn.Linear(16, 40))

    def data(self, rows):
        tokens = torch.randint(40, (rows, 11))
        return tokens[:, :-1], tokens[:, 1:]

    def loss(self, model, x, y):
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@family
class LstmPacked(Real):
    """Tagging of sentences of unequal length: sorted, packed, two layers in both directions, padded again."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(40, 16, padding_idx=0)
            self.lstm = nn.LSTM(16, 20, num_layers=2, bidirectional=True, batch_first=True)
            self.out = nn.Linear(40, 6)

        def forward(self, tokens, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
            hidden, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=tokens.size(1))
            return self.out(hidden)

    def model(self):
        return self.Net()

    def data(self, rows):
        lengths = torch.randint(1, 13, (rows,))
        tokens = torch.randint(1, 40, (rows, 12)).masked_fill(torch.arange(12) >= lengths[:, None], 0)
        return tokens, lengths, torch.randint(6, (rows, 12)).masked_fill(tokens == 0, -100)

    def loss(self, model, tokens, lengths, tags):
        return F.cross_entropy(model(tokens, lengths).transpose(1, 2), tags)


@family
class GruTranslator(Real):
    """Time-major: an encoder, and a decoder that attends to it, step by step, fed with the right words."""

    class Net(nn.Module):
        def __init__(self, width=20):
            super().__init__()
            self.source, self.target = nn.Embedding(40, width), nn.Embedding(40, width)
            self.encode = nn.GRU(width, width, num_layers=2)
            self.cell = nn.GRUCell(2 * width, width)
            self.query = nn.Linear(width, width, bias=False)
            self.out = nn.Linear(2 * width, 40)

        def forward(self, source, target):
            memory, state = self.encode(self.source(source))
            state = state[-1]
            context = torch.zeros_like(state)
            out = []
            for word in self.target(target).unbind(0):
                state = self.cell(torch.cat([word, context], dim=-1), state)
                weight = torch.einsum("tbd,bd->tb", memory, self.query(state)).softmax(0)
                context = (weight.unsqueeze(-1) * memory).sum(0)
                out.append(self.out(torch.cat([state, context], dim=-1)))
            return torch.stack(out)

    def model(self):
        return self.Net()

    def data(self, rows):
        return torch.randint(40, (10, rows)), torch.randint(40, (8, rows))

    def permuted(self, data, order):
        return tuple(t[:, order] for t in data)

    def loss(self, model, source, target):
        logits = model(source, target[:-1])
        return F.cross_entropy(logits.view(-1, 40), target[1:].reshape(-1))


@family
class TopTwoExperts(Real):
    """A mixture of experts by hand: tokens are gathered for each expert, and added back where they came from; the auxiliary loss is over all
    tokens."""

    at_full_batch = {"mul", "nonzero"}  # the masks of the experts

    class Net(nn.Module):
        def __init__(self, width=16):
            super().__init__()
            self.embed = nn.Embedding(40, width)
            self.norm = nn.LayerNorm(width)
            self.gate = nn.Linear(width, 4, bias=False)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width)) for _ in range(4))
            self.out = nn.Linear(width, 40)

        def forward(self, tokens):
            x = self.embed(tokens)
            flat = self.norm(x).view(-1, x.size(-1))
            probabilities = self.gate(flat).softmax(-1)
            weight, chosen = probabilities.topk(2, dim=-1)
            weight = weight / weight.sum(-1, keepdim=True)
            mixed = torch.zeros_like(flat)
            for number, expert in enumerate(self.experts):
                token, slot = torch.where(chosen == number)
                if token.numel():
                    mixed.index_add_(0, token, expert(flat[token]) * weight[token, slot, None])
            share = F.one_hot(chosen, 4).to(flat.dtype).mean((0, 1))
            return self.out(x + mixed.view_as(x)), 4 * (share * probabilities.mean(0)).sum()

    def model(self):
        return self.Net()

    def data(self, rows):
        tokens = torch.randint(40, (rows, 13))
        return tokens[:, :-1], tokens[:, 1:]

    def loss(self, model, x, y):
        logits, balance = model(x)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten()) + 0.01 * balance


# ---- images that are made ----------------------------------------------------------------------------------------------------


class ResidualBlock(nn.Module):
    def __init__(self, inputs, outputs, time=None):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(2, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(2, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, 2 * outputs) if time else None
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, time=None):
        h = self.norm2(self.conv1(F.silu(self.norm1(x))))
        if self.time is not None:
            scale, shift = self.time(F.silu(time))[:, :, None, None].chunk(2, dim=1)
            h = h * (1 + scale) + shift
        return self.skip(x) + self.conv2(F.silu(h))


class GroupNormUnet(nn.Module):
    def __init__(self, channels, outputs, width=8, time=None):
        super().__init__()
        self.enter = nn.Conv2d(channels, width, 3, padding=1)
        self.down1 = ResidualBlock(width, width, time)
        self.shrink = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.down2 = ResidualBlock(width, 2 * width, time)
        self.heads = nn.MultiheadAttention(2 * width, 2, batch_first=True)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.up1 = ResidualBlock(3 * width, width, time)
        self.leave = nn.Sequential(nn.GroupNorm(2, width), nn.SiLU(), nn.Conv2d(width, outputs, 3, padding=1))

    def forward(self, x, time=None):
        a = self.down1(self.enter(x), time)
        b = self.down2(self.shrink(a), time)
        flat = b.flatten(2).transpose(1, 2)
        b = b + self.heads(flat, flat, flat, need_weights=False)[0].transpose(1, 2).view(b.shape)
        return self.leave(self.up1(torch.cat([self.up(b), a], dim=1), time))


@family
class SegmentingUnet(Real):
    """A U-Net with group norm and attention at its lowest level; cross-entropy by pixel, and Dice by row."""

    def model(self):
        return GroupNormUnet(3, 4)

    def data(self, rows):
        return torch.randn(rows, 3, 12, 12), torch.randint(4, (rows, 12, 12))

    def loss(self, model, x, y):
        logits = model(x)
        p, t = logits.softmax(1), F.one_hot(y, 4).permute(0, 3, 1, 2).to(logits.dtype)
        dice = (2 * (p * t).sum((2, 3)) + 1) / (p.sum((2, 3)) + t.sum((2, 3)) + 1)
        return F.cross_entropy(logits, y) + 1 - dice.mean()


class TimedUnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.unet = GroupNormUnet(1, 1, time=16)
        self.time = nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Linear(16, 16))
        self.register_buffer("alphas", torch.cumprod(1 - torch.linspace(1e-4, 0.2, 50), 0))

    def forward(self, x, t):
        frequencies = torch.exp(-math.log(1000) * torch.arange(8).to(x.dtype) / 8)
        angles = t[:, None].to(x.dtype) * frequencies
        return self.unet(x, self.time(torch.cat([angles.sin(), angles.cos()], dim=-1)))


@family
class Diffusion(Real):
    """Noise and time steps are drawn at the size of the batch; a moving average of the weights follows each step."""

    def model(self):
        model = TimedUnet()
        self.average = [p.detach().clone() for p in model.parameters()]
        return model

    def data(self, rows):
        return (torch.rand(rows, 1, 12, 12) * 2 - 1,)

    def loss(self, model, x):
        noise = torch.randn_like(x)
        t = torch.randint(0, 50, (x.shape[0],))
        alpha = model.alphas[t].view(-1, 1, 1, 1)
        predicted = model(alpha.sqrt() * x + (1 - alpha).sqrt() * noise, t)
        weight = (alpha / (1 - alpha)).clamp(max=5).flatten()
        return (F.mse_loss(predicted, noise, reduction="none").mean((1, 2, 3)) * weight).mean()

    symmetric = False

    def step(self, model, optimizer, data, record):
        super().step(model, optimizer, data, record)
        with torch.no_grad():
            for mean, parameter in zip(self.average, model.parameters()):
                mean.lerp_(parameter, 0.1)

    def finish(self, model, record):
        for number, mean in enumerate(self.average):
            record.value(f"average{number}", mean)


@family
class ConvolutionalVae(Real):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.SiLU(), nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.SiLU(), nn.Flatten(),
                                        nn.Linear(12 * 9, 16))
            self.decode = nn.Sequential(nn.Linear(8, 12 * 9), nn.Unflatten(1, (12, 3, 3)), nn.ConvTranspose2d(12, 8, 4, stride=2, padding=1), nn.SiLU(),
                                        nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1))

        def forward(self, x, noise):
            mean, log_variance = self.encode(x).chunk(2, dim=1)
            return self.decode(mean + noise * (0.5 * log_variance).exp()), mean, log_variance

    def model(self):
        return self.Net()

    symmetric = False

    def data(self, rows):
        return (torch.rand(rows, 1, 12, 12),)

    def loss(self, model, x):
        rebuilt, mean, log_variance = model(x, torch.randn(len(x), 8))
        likelihood = F.binary_cross_entropy_with_logits(rebuilt, x, reduction="none").sum((1, 2, 3))
        divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(1)
        return (likelihood + divergence).mean()


@family
class DeepConvolutionalGan(Real):
    """Two optimizers; the pictures that are made are detached for the discriminator, and its graph used again for the generator. Batch norm in
    both."""

    stages = True
    symmetric = False

    def model(self):
        return nn.ModuleDict({
            "generator": nn.Sequential(nn.ConvTranspose2d(8, 16, 3, bias=False), nn.BatchNorm2d(16), nn.SiLU(),
                                       nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.SiLU(),
                                       nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1), nn.Tanh()),
            "discriminator": nn.Sequential(nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.LeakyReLU(0.2, inplace=True),
                                           nn.Conv2d(8, 16, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.SiLU(inplace=True),
                                           nn.Conv2d(16, 1, 3), nn.Flatten()),
        })

    def data(self, rows):
        return torch.rand(rows, 1, 12, 12) * 2 - 1, torch.randn(rows, 8, 1, 1)

    class Both:
        """Two optimizers, to the harness one."""

        def __init__(self, *optimizers):
            self.each = optimizers

        @property
        def state(self):
            return {parameter: state for optimizer in self.each for parameter, state in optimizer.state.items()}

    def optimizer(self, model, name):
        return self.Both(super().optimizer(model["generator"], name), super().optimizer(model["discriminator"], name))

    def step(self, model, optimizer, data, record):
        real, noise = data
        generator, discriminator = model["generator"], model["discriminator"]
        of_generator, of_discriminator = optimizer.each
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        fake = generator(noise)

        of_discriminator.zero_grad()
        on_real = F.binary_cross_entropy_with_logits(discriminator(real), ones)
        on_real.backward()
        on_fake = F.binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros)
        on_fake.backward()
        record.gradients(discriminator, "discriminator")
        of_discriminator.step()

        of_generator.zero_grad()
        fooled = F.binary_cross_entropy_with_logits(discriminator(fake), ones)
        fooled.backward()
        record.gradients(generator, "generator")
        of_generator.step()
        record.value("judged", on_real + on_fake)
        record.value("fooled", fooled)


# ---- other kinds of data -----------------------------------------------------------------------------------------------------


@family
class Dlrm(Real):
    """Recommendation (Naumov et al., 2019): bags of ids, given flat with their offsets, a perceptron for what is dense, and all dot products
    between them."""

    tables = 4
    budget_rows = 512

    class Net(nn.Module):
        def __init__(self, width=8, tables=4):
            super().__init__()
            self.bottom = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, width), nn.ReLU())
            self.bags = nn.ModuleList(nn.EmbeddingBag(30, width, mode="sum") for _ in range(tables))
            pairs = (tables + 1) * tables // 2
            self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))
            self.top = nn.Sequential(nn.Linear(width + pairs, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))

        def forward(self, dense, *sparse):
            x = self.bottom(dense)
            found = [bag(indices, offsets) for bag, indices, offsets in zip(self.bags, sparse[::2], sparse[1::2])]
            all_of = torch.stack([x, *found], dim=1)
            products = torch.bmm(all_of, all_of.transpose(1, 2))
            return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], dim=1))

    def model(self):
        return self.Net()

    symmetric = False

    def data(self, rows):
        sparse = []
        for _ in range(self.tables):
            counts = torch.randint(1, 4, (rows,))
            sparse += [torch.randint(30, (int(counts.sum()),)), counts.cumsum(0) - counts]
        return torch.randn(rows, 6), torch.randint(2, (rows, 1)), *sparse

    def loss(self, model, dense, clicked, *sparse):
        return F.binary_cross_entropy_with_logits(model(dense, *sparse), clicked.to(dense.dtype))


@family
class DlrmFixed(Dlrm):
    """The same with as many ids in each bag, as a table of them."""

    def data(self, rows):
        return torch.randn(rows, 6), torch.randint(2, (rows, 1)), *[torch.randint(30, (rows, 3)) for _ in range(self.tables)]

    def loss(self, model, dense, clicked, *ids):
        return super().loss(model, dense, clicked, *[part for t in ids for part in (t, None)])


class MessagePassing(nn.Module):
    def __init__(self, width, nodes_at):
        super().__init__()
        self.message, self.update, self.nodes_at = nn.Linear(2 * width, width), nn.GRUCell(width, width), nodes_at

    def forward(self, x, source, target):
        sent = F.silu(self.message(torch.cat([x.index_select(self.nodes_at, source), x.index_select(self.nodes_at, target)], dim=-1)))
        got = torch.zeros_like(x).index_add_(self.nodes_at, target, sent)
        return self.update(got.flatten(0, -2), x.flatten(0, -2)).view(x.shape)


@family
class GraphOfSensors(Real):
    """The same graph for all rows: [B, nodes, features], messages along dimension 1."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.leave = nn.Linear(4, 16), nn.Linear(16, 2)
            self.layers = nn.ModuleList(MessagePassing(16, nodes_at=1) for _ in range(2))
            self.register_buffer("edges", torch.randint(10, (2, 24)))

        def forward(self, x):
            h = self.enter(x)
            for layer in self.layers:
                h = layer(h, *self.edges)
            best = torch.full_like(h, -1e9).scatter_reduce(1, self.edges[1][None, :, None].expand(len(h), -1, h.size(-1)), h[:, self.edges[0]], "amax")
            return self.leave(h + best.clamp(min=-1))

    def model(self):
        return self.Net()

    def data(self, rows):
        return torch.randn(rows, 10, 4), torch.randn(rows, 10, 2)

    def loss(self, model, x, y):
        return F.l1_loss(model(x), y)


@family
class GraphsOfMolecules(Real):
    """Graphs of unequal size behind one another, as PyTorch Geometric batches them: nodes are the rows, edges lead from row to row, and a
    readout sums the nodes of each graph."""

    symmetric = False

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.leave = nn.Embedding(9, 16), nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 1))
            self.layers = nn.ModuleList(MessagePassing(16, nodes_at=0) for _ in range(2))

        def forward(self, kinds, source, target, graph, graphs):
            h = self.embed(kinds)
            for layer in self.layers:
                h = layer(h, source, target)
            of_graphs = torch.zeros(graphs, h.size(1)).index_add(0, graph, h)
            return self.leave(of_graphs).squeeze(1)

    def model(self):
        return self.Net()

    def data(self, rows):
        nodes = torch.randint(3, 8, (rows,))
        graph = torch.repeat_interleave(torch.arange(rows), nodes)
        first = (nodes.cumsum(0) - nodes)[graph]
        source = torch.arange(len(graph)).repeat(3)
        target = first.repeat(3) + (torch.rand(3 * len(graph)) * nodes[graph].repeat(3)).long()
        return torch.randint(9, graph.shape), source, target, graph, torch.randn(rows)

    def loss(self, model, kinds, source, target, graph, wanted):
        return F.mse_loss(model(kinds, source, target, graph, len(wanted)), wanted)


@family
class SeveralTasks(Real):
    """One trunk, three heads, a backward pass each over the graph that is kept; the losses weighed by what was learned of their noise."""

    stages = True
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
            self.segment, self.classify, self.regress = nn.Conv2d(8, 3, 1), nn.Linear(8, 5), nn.Linear(8, 2)
            self.noise = nn.Parameter(torch.zeros(3))

        def forward(self, x):
            h = self.trunk(x)
            pooled = h.mean((2, 3))
            return self.segment(h), self.classify(pooled), self.regress(pooled)

    def model(self):
        return self.Net()

    def data(self, rows):
        return torch.randn(rows, 3, 10, 10), torch.randint(3, (rows, 10, 10)), torch.randint(5, (rows,)), torch.randn(rows, 2)

    def step(self, model, optimizer, data, record):
        x, pixels, label, wanted = data
        optimizer.zero_grad()
        segmented, classified, regressed = model(x)
        losses = F.cross_entropy(segmented, pixels), F.cross_entropy(classified, label), F.smooth_l1_loss(regressed, wanted)
        for number, loss in enumerate(losses):
            weighed = torch.exp(-model.noise[number]) * loss + model.noise[number]
            weighed.backward(retain_graph=number < 2)
            record.gradients(model, f"after{number}")
            record.value(f"loss{number}", loss)
        optimizer.step()
