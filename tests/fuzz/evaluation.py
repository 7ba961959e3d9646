"""Evaluation within the step, on tensors that are written to in place."""

from kinds import kind

WRITES = ("{e}.relu_()", "{e}[0] = 0", "{e} += {h}.detach() * 0.5", "{e}.mul_(0.7)", "{e}[..., :1] = {e}[..., -1:] * 2", "{e}.view(-1)[::2].add_(0.25)", "{e}.t_() if {e}.dim() == 2 else {e}.neg_()", "{e}.masked_fill_({e} > 0.4, 0.1)", "F.dropout({e}, 0.0, inplace=True)",
          "{e}.select(-1, 0).copy_({e}.select(-1, -1))", "torch.add({e}, 0.5, out={e})", "{e}.index_add_(0, torch.tensor([0]), {e}[:1] * 0.5)", "{e}.data.mul_(1.25)", "{e}.clamp_(-0.9, 0.9)", "{e}.flatten(0).sigmoid_()", "F.leaky_relu({e}, 0.1, inplace=True)")


@kind(2, later=True)
def evaluated(c):
    h = c.pick(lambda sizes: 2 <= len(sizes) <= 3 and all(sizes))
    if h is None:
        return False
    e = c.new("v")
    lines = [f"{e} = {c.any(('{h}.detach() * 1.5', 'torch.tanh({h}.detach())', '{h}.detach().softmax(-1)')).format(h=h)}"]
    for _ in range(c.any((1, 1, 2, 3))):
        lines.append(c.any(WRITES).format(e=e, h=h))
        if c.one_in(2):
            lines.append(f"{e} = {c.any(('torch.tanh({e})', '({e} * 1.3).contiguous()', '{e} - {e}.mean(-1, keepdim=True)', 'torch.exp({e} * 0.3)')).format(e=e)}")
    lines.append(f"note.value('evaluated', {c.any(('{e}.sum().item()', '({e} * 1.1).clone()', '{e}.max(-1).values.tolist()')).format(e=e)})")
    body = "\n    ".join(lines)
    return c.add(f"with torch.{c.any(('inference_mode', 'inference_mode', 'no_grad'))}():\n    {body}", (), ("evaluated_in_place",))
