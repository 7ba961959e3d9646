"""How a program was run, and what came of it."""

import dataclasses


@dataclasses.dataclass
class Setting:
    """What is done to one run: a budget as a share of what the program takes by itself, or a KOILA_INJECT_OOM value, from some step on."""
    budget: float = 0.0
    inject: str = ""
    begin: int = 0
    bytes: int = 0  # what the share came to

    def __str__(self):
        what = f"budget {self.budget:.3f}" if self.budget else self.inject or "no limit"
        return f"{what} from step {self.begin}" if self.begin else what


@dataclasses.dataclass
class Verdict:
    setting: Setting
    kind: str  # exact, refused, and what is wrong: changed, wrong, error, over, leak, alarm (a refusal by the check at run time)
    detail: str = ""

    @property
    def bad(self):
        return self.kind not in ("exact", "refused")
