"""Training programs over packed sequences (torch.nn.utils.rnn), each under budgets between what it takes in any case and plain's peak: what came of each budget, as JSON.

    koila run --ladder 0,1 -- python tests/e2e/packed.py NAME...
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

from under_budgets import Programs, main, train

PROGRAMS = program = Programs()
ROWS, STEPS_AT_MOST, WIDTH = 48, 24, 24


def lengths_of_rows(sort=False):
    lengths = torch.randint(3, STEPS_AT_MOST + 1, (ROWS,))
    lengths[7] = STEPS_AT_MOST
    return lengths.sort(descending=True).values if sort else lengths


@program
def classified_by_the_last_state(out):
    """Two layers in both directions; a linear layer on the states after the last steps."""
    net = nn.ModuleDict({"embed": nn.Embedding(50, WIDTH), "lstm": nn.LSTM(WIDTH, WIDTH, 2, bidirectional=True, batch_first=True), "head": nn.Linear(2 * WIDTH, 5)})

    def loss():
        tokens, labels = torch.randint(0, 50, (ROWS, STEPS_AT_MOST)), torch.randint(0, 5, (ROWS,))
        packed = pack_padded_sequence(net["embed"](tokens), lengths_of_rows(), batch_first=True, enforce_sorted=False)
        _, (h, _) = net["lstm"](packed)
        return F.cross_entropy(net["head"](torch.cat([h[-2], h[-1]], 1)), labels)

    train(torch.optim.Adam(net.parameters(), 1e-3), out, loss)
    return net


@program
def tagged_at_each_step(out):
    """Padded again, with a padding value of its own, and a loss that leaves the padding out."""
    net = nn.ModuleDict({"embed": nn.Embedding(50, WIDTH), "gru": nn.GRU(WIDTH, 2 * WIDTH), "head": nn.Linear(2 * WIDTH, 5)})

    def loss():
        tokens, labels, lengths = torch.randint(0, 50, (STEPS_AT_MOST, ROWS)), torch.randint(0, 5, (STEPS_AT_MOST, ROWS)), lengths_of_rows()
        packed = pack_padded_sequence(net["embed"](tokens), lengths, enforce_sorted=False)
        hidden, counted = pad_packed_sequence(net["gru"](packed)[0], padding_value=-0.5, total_length=STEPS_AT_MOST + 2)
        assert counted.equal(lengths)
        inside = torch.arange(STEPS_AT_MOST)[:, None] < counted
        labels = labels.masked_fill(~inside, -100)
        return F.cross_entropy(net["head"](hidden)[:-2].flatten(0, 1), labels.flatten()) + hidden.square().mean()

    train(torch.optim.Adam(net.parameters(), 1e-3), out, loss)
    return net


@program
def captions_compared_where_they_are(out):
    """Scores and targets are packed alike, sorted by the data loader, and compared as packed data (image captioning)."""
    net = nn.ModuleDict({"embed": nn.Embedding(50, WIDTH), "lstm": nn.LSTM(WIDTH, 2 * WIDTH, batch_first=True), "head": nn.Linear(2 * WIDTH, 50)})

    def loss():
        tokens, lengths = torch.randint(0, 50, (ROWS, STEPS_AT_MOST)), lengths_of_rows(sort=True)
        hidden, _ = net["lstm"](pack_padded_sequence(net["embed"](tokens), lengths, batch_first=True))
        targets = pack_padded_sequence(tokens.roll(-1, 1), lengths, batch_first=True).data
        return F.cross_entropy(net["head"](hidden.data), targets)

    train(torch.optim.SGD(net.parameters(), 0.1, momentum=0.9), out, loss)
    return net


@program
def layers_between_packed_layers(out):
    """What lies between the layers works on the data: a linear layer, a norm, a residual."""
    net = nn.ModuleDict({"a": nn.GRU(WIDTH, WIDTH), "mid": nn.Linear(WIDTH, WIDTH), "norm": nn.LayerNorm(WIDTH), "b": nn.RNN(WIDTH, WIDTH, nonlinearity="relu")})

    def loss():
        x = torch.randn(STEPS_AT_MOST, ROWS, WIDTH)
        first, _ = net["a"](pack_padded_sequence(x, lengths_of_rows(), enforce_sorted=False))
        between = net["norm"](first.data + F.gelu(net["mid"](first.data)))
        second, last = net["b"](PackedSequence(between, *first[1:]))
        hidden, _ = pad_packed_sequence(second)
        return hidden.square().mean() + last.sum(-1).tanh().mean()

    train(torch.optim.AdamW(net.parameters(), 1e-3), out, loss)
    return net


@program
def state_of_the_first_goes_into_the_second(out):
    """Encoder and decoder, each over lengths of its own: the states change their order from one to the other."""
    net = nn.ModuleDict({"encode": nn.LSTM(WIDTH, WIDTH, batch_first=True), "decode": nn.LSTM(WIDTH, WIDTH, batch_first=True), "head": nn.Linear(WIDTH, WIDTH)})

    def loss():
        source, target = torch.randn(ROWS, STEPS_AT_MOST, WIDTH), torch.randn(ROWS, STEPS_AT_MOST, WIDTH)
        _, state = net["encode"](pack_padded_sequence(source, lengths_of_rows(), batch_first=True, enforce_sorted=False))
        hidden, _ = net["decode"](pack_padded_sequence(target, lengths_of_rows(), batch_first=True, enforce_sorted=False), state)
        hidden, _ = pad_packed_sequence(hidden, batch_first=True, total_length=STEPS_AT_MOST)
        return F.l1_loss(net["head"](hidden), target)

    train(torch.optim.Adam(net.parameters(), 1e-3), out, loss)
    return net


@program
def attention_over_what_is_padded_again(out):
    net = nn.ModuleDict({"lstm": nn.LSTM(WIDTH, WIDTH, bidirectional=True, batch_first=True), "score": nn.Linear(2 * WIDTH, 1), "head": nn.Linear(2 * WIDTH, 3)})

    def loss():
        x, labels, lengths = torch.randn(ROWS, STEPS_AT_MOST, WIDTH), torch.randint(0, 3, (ROWS,)), lengths_of_rows()
        hidden, _ = pad_packed_sequence(net["lstm"](pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[0], batch_first=True)
        outside = torch.arange(hidden.size(1)) >= lengths[:, None]
        weights = net["score"](torch.tanh(hidden)).squeeze(-1).masked_fill(outside, float("-inf")).softmax(1)
        return F.cross_entropy(net["head"](torch.bmm(weights[:, None], hidden).squeeze(1)), labels)

    train(torch.optim.RMSprop(net.parameters(), 1e-3), out, loss)
    return net


@program
def rows_sorted_by_hand(out):
    """x[order], as it was written before enforce_sorted: the rows stay in that order to the end."""
    net = nn.ModuleDict({"embed": nn.Embedding(50, WIDTH), "gru": nn.GRU(WIDTH, 2 * WIDTH, 2, batch_first=True), "head": nn.Linear(2 * WIDTH, 5)})

    def loss():
        tokens, labels = torch.randint(0, 50, (ROWS, STEPS_AT_MOST)), torch.randint(0, 5, (ROWS,))
        lengths, order = lengths_of_rows().sort(descending=True)
        tokens, labels = tokens[order], labels[order]
        hidden, last = net["gru"](pack_padded_sequence(net["embed"](tokens), lengths, batch_first=True))
        hidden, _ = pad_packed_sequence(hidden, batch_first=True)
        return F.cross_entropy(net["head"](hidden.mean(1) + last[-1]), labels)

    train(torch.optim.Adam(net.parameters(), 1e-3), out, loss)
    return net


@program
def packed_from_a_list(out):
    """pack_sequence() of embedded rows, unsorted."""
    net = nn.ModuleDict({"lstm": nn.LSTM(WIDTH, 2 * WIDTH), "head": nn.Linear(2 * WIDTH, 5)})

    def loss():
        rows = [torch.randn(n, WIDTH) for n in lengths_of_rows().tolist()]
        _, (h, c) = net["lstm"](pack_sequence(rows, enforce_sorted=False))
        return F.cross_entropy(net["head"](h[-1] + c[-1].tanh()), torch.randint(0, 5, (ROWS,)))

    train(torch.optim.Adam(net.parameters(), 1e-3), out, loss)
    return net


@program
def pooled_and_compared_in_pairs(out):
    """A siamese network: one layer over two batches with lengths of their own."""
    net = nn.ModuleDict({"embed": nn.Embedding(50, WIDTH), "lstm": nn.LSTM(WIDTH, WIDTH, batch_first=True)})

    def encode(tokens):
        packed = pack_padded_sequence(net["embed"](tokens), lengths_of_rows(), batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(net["lstm"](packed)[0], batch_first=True, padding_value=-1e9)
        return hidden.max(1).values

    def loss():
        a, b = (encode(torch.randint(0, 50, (ROWS, STEPS_AT_MOST))) for _ in range(2))
        return F.mse_loss(torch.exp(-(a - b).abs().sum(1)), torch.rand(ROWS))

    train(torch.optim.Adadelta(net.parameters()), out, loss)
    return net


@program
def decoded_from_the_last_state(out):
    """Sequence to sequence: the last state of a packed encoder, and outputs that are written step by step into zeros."""
    net = nn.ModuleDict({"embed": nn.Embedding(20, WIDTH), "encode": nn.GRU(WIDTH, 32, batch_first=True), "head": nn.Linear(32, 80)})

    def loss():
        tokens = torch.randint(1, 20, (120, 9))
        packed = pack_padded_sequence(net["embed"](tokens), torch.randint(2, 10, (120,)), batch_first=True, enforce_sorted=False)
        _, h = net["encode"](packed)
        written = torch.zeros(6, 120, 80)
        for t in range(6):
            written[t] = net["head"](h[-1]).sin()
        return written.exp().cos().pow(2).mean()

    train(torch.optim.SGD(net.parameters(), 0.1), out, loss)
    return net


if __name__ == "__main__":
    main(PROGRAMS)
