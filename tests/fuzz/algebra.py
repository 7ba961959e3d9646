"""Linear algebra on small matrices."""

from kinds import kind


@kind(2)
def linear_algebra(c):
    h = c.pick(lambda sizes: len(sizes) >= 2 and sizes[-1] <= 8 and sizes[-2] <= 16)
    if h is None:
        return False
    square = f"({h}.mT @ {h} * 0.2 + 2 * torch.eye({c.size(c.sizes(h)[-1])}))"
    choices = {"inv": f"torch.linalg.inv({square})", "solve": f"torch.linalg.solve({square}, {h}.mT)", "cholesky": f"torch.linalg.cholesky({square})", "det": f"torch.linalg.det({square})", "slogdet": f"torch.logdet({square})", "trace": f"{square}.diagonal(dim1=-2, dim2=-1).sum(-1)", "matrix_norm": f"torch.linalg.matrix_norm({h})",
               "matrix_exp": f"torch.linalg.matrix_exp({square} * 0.1)", "svdvals": f"torch.linalg.svdvals({square} + torch.diag(torch.arange({c.size(c.sizes(h)[-1])}).double()))", "matrix_power": f"torch.linalg.matrix_power({square} * 0.3, 2)", "cov": f"torch.cov({h}.flatten(1).T)", "corr": f"torch.corrcoef({h}.flatten(1).T + torch.eye(*{h}.flatten(1).T.shape))",
               "triangular": f"torch.linalg.solve_triangular({square}.triu(), {h}.mT, upper=True)", "pinv": f"torch.linalg.pinv({square})", "gram_trace": f"({h} * {h}).sum((-1, -2))"}
    return c.let_any(choices)
