# Whether an autograd.Function of the program's works element by element, by the text of its methods: see Note [Functions as operators] (own_functions.py), which this runs before, in the same namespace.

torch, ast, inspect, textwrap, math = (modules[name] for name in ("torch", "ast", "inspect", "textwrap", "math"))

ELEMENTWISE = set(
    """abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max clamp_min clip clone copysign cos cosh div divide eq erf erfc exp exp2
    expm1 floor floor_divide fmod frac full_like ge greater greater_equal gt heaviside hypot isfinite isinf isnan le lerp less less_equal log log10 log1p log2 logical_and logical_not logical_or
    logical_xor logit lt masked_fill maximum minimum mul multiply nan_to_num ne neg negative not_equal ones_like pow reciprocal relu remainder round rsqrt sgn sigmoid sign sin sinh softplus sqrt
    square sub subtract tan tanh true_divide trunc where xlogy zeros_like
    celu elu gelu hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 selu silu softsign tanhshrink""".split()
)
# May hand back the memory of what they are given.
ALIASES = set("bfloat16 bool contiguous detach double expand_as float half int long to type type_as view_as".split())
WRITES = set("abs add clamp clamp_max clamp_min cos div exp log masked_fill mul neg pow reciprocal relu rsqrt sigmoid sign sin sqrt square sub tanh".split())  # with "_", into the first
TRUTHS = set("eq ge greater greater_equal gt isfinite isinf isnan le less less_equal logical_and logical_not logical_or logical_xor lt ne not_equal bool".split())
OF_NUMBERS = (float, int, bool, abs, min, max)

# What a name or an expression stands for: a number and its like; a tensor of the batch's sizes; one of those that the method has made, and whose memory nothing else has; one of truths; a tensor or None;
# the context; its tensors and its flags; whether a gradient is wanted, which says in forward what to keep, and nothing else.
NUMBER, TENSOR, FRESH, TRUTH, MAYBE, CONTEXT, SAVED, FLAGS, WANTED = "number", "tensor", "fresh", "truth", "maybe", "context", "saved", "flags", "wanted"
TENSORS = {TENSOR, FRESH, TRUTH}
OF_CONTEXT = set(dir(torch.autograd.function.FunctionCtx)) | {"saved_tensors", "saved_variables", "needs_input_grad"}
LITERALS = (int, float, bool, type(None), str, torch.dtype)


class NotElementwise(Exception):
    pass


def require(condition):
    if not condition:
        raise NotElementwise


class Method:
    """One method of a Function, read."""

    def __init__(self, function, kept, forward):
        while hasattr(function, "__wrapped__"):  # once_differentiable, custom_fwd
            require(inspect.getfile(function.__code__).startswith(modules["os"].path.dirname(torch.__file__)))
            function = function.__wrapped__
        require(inspect.isfunction(function) and function.__defaults__ is None and function.__kwdefaults__ is None)
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        require(len(tree.body) == 1 and isinstance(tree.body[0], ast.FunctionDef))
        self.node = tree.body[0]
        code = function.__code__
        arguments = self.node.args
        require(not (arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs or arguments.defaults))
        self.arguments = [argument.arg for argument in arguments.args]
        # The text is the code's, and not what the file has become since.
        require(self.node.name == code.co_name and tuple(self.arguments) == code.co_varnames[: code.co_argcount])
        names = {n.id for n in ast.walk(self.node) if isinstance(n, ast.Name)} | {n.attr for n in ast.walk(self.node) if isinstance(n, ast.Attribute)}
        require(set(code.co_names) | set(code.co_varnames) | set(code.co_freevars) <= names | set(self.arguments) | {self.node.name})
        self.outer = dict(function.__globals__)
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            self.outer[name] = cell.cell_contents
        self.builtins = vars(modules["builtins"])
        self.locals = set(code.co_varnames) | set(code.co_cellvars)
        require(not code.co_cellvars)
        self.kept = kept  # kinds by the context's attribute; a forward method adds to them
        self.forward = forward
        self.numbers = []  # that it reads of its module, or of the function that it is in: a mapping or a cell, and a name
        self.cells = dict(zip(code.co_freevars, function.__closure__ or ()))
        self.globals = function.__globals__
        self.kinds = {}
        self.memory = {}  # by variable: whose memory it may have
        self.kept_names, self.returned_names = set(), set()
        self.returned = []

    def read(self, kinds):
        require(len(kinds) == len(self.arguments))
        self.kinds = dict(zip(self.arguments, kinds))
        require(self.block(self.node.body))
        require(not self.kept_names & self.returned_names)
        return self.returned

    def block(self, statements):
        """Whether it ends in a return, on each way."""
        for statement in statements:
            if self.statement(statement):
                return True
        return False

    def statement(self, s):
        if isinstance(s, ast.Return):
            require(s.value is not None)
            parts = s.value.elts if isinstance(s.value, ast.Tuple) else [s.value]
            self.returned.append([self.kind(part) for part in parts])
            for part in parts:
                self.returned_names |= self.same_memory(part)
            return True
        if isinstance(s, ast.Assign):
            for target in s.targets:
                self.assign(target, s.value)
        elif isinstance(s, ast.AugAssign):
            self.written(s.target)
            require(self.kind(s.value) in TENSORS | {NUMBER})
            require(isinstance(s.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)))
        elif isinstance(s, ast.Expr):
            if not isinstance(s.value, ast.Constant):
                self.effect(s.value)
        elif isinstance(s, ast.If) and self.kind(s.test) == WANTED:
            require(not s.orelse)
            for kept in s.body:
                require(isinstance(kept, ast.Expr) or (isinstance(kept, ast.Assign) and all(isinstance(n, ast.Attribute) for n in self.targets(kept.targets[0]))))
                require(not self.statement(kept))
        elif isinstance(s, ast.If):
            require(self.kind(s.test) == NUMBER)
            before = dict(self.kinds)
            ends = self.block(s.body)
            after, self.kinds = self.kinds, before
            ends_otherwise = self.block(s.orelse)
            if ends_otherwise:
                self.kinds = after
            elif not ends:
                self.kinds = {name: self.either(kind, after[name]) for name, kind in self.kinds.items() if name in after}
            return ends and ends_otherwise
        else:
            require(isinstance(s, ast.Pass))
        return False

    @staticmethod
    def either(a, b):
        if a == b:
            return a
        require({a, b} <= TENSORS | {NUMBER, MAYBE})
        return TENSOR if {a, b} <= TENSORS else MAYBE

    def same_memory(self, e):
        """The variables whose memory the expression may have."""
        if isinstance(e, ast.IfExp):
            return self.same_memory(e.body) | self.same_memory(e.orelse)
        if isinstance(e, ast.Call) and isinstance(e.func, ast.Attribute) and (e.func.attr in ALIASES or e.func.attr.endswith("_")):
            return self.same_memory(e.func.value)
        if isinstance(e, ast.Attribute) and e.attr == "data":
            return self.same_memory(e.value)
        return {e.id} | self.memory.get(e.id, set()) if isinstance(e, ast.Name) else set()

    @staticmethod
    def targets(target):
        return target.elts if isinstance(target, ast.Tuple) else [target]

    def assign(self, target, value):
        if isinstance(target, ast.Name):
            self.kinds[target.id] = self.kind(value)
            require(self.kinds[target.id] in TENSORS | {NUMBER, MAYBE, SAVED, FLAGS})
            self.memory.setdefault(target.id, set()).update(self.same_memory(value))
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            require(len(target.elts) == len(value.elts) and all(isinstance(part, ast.Attribute) for part in target.elts))
            for part, of in zip(target.elts, value.elts):
                self.assign(part, of)
        elif isinstance(target, ast.Tuple):
            kind = self.kind(value)
            require(kind in (SAVED, FLAGS))
            for name in target.elts:
                require(isinstance(name, ast.Name))
                self.kinds[name.id] = TENSOR if kind == SAVED else NUMBER
        elif isinstance(target, ast.Attribute):
            require(self.kind(target.value) == CONTEXT and self.forward and target.attr not in OF_CONTEXT)
            # What the context keeps without save_for_backward() may be written to, and nobody notices: it has to be what nobody else has.
            kind = self.kind(value)
            require(kind in (FRESH, TRUTH, NUMBER) and (kind == NUMBER or not self.same_memory(value) & set(self.arguments)))
            self.kept[target.attr] = TENSOR if kind in TENSORS else NUMBER
            self.kept_names |= self.same_memory(value)
        else:
            require(isinstance(target, ast.Subscript))  # gradient[mask] = 0
            self.written(target.value)
            require(self.kind(target.slice) == TRUTH and self.kind(value) == NUMBER)

    def written(self, target):
        """In place: a number is another one, and a tensor has to be the method's own."""
        require(isinstance(target, ast.Name) and self.kinds.get(target.id) in (FRESH, NUMBER))

    def effect(self, e):
        require(isinstance(e, ast.Call) and isinstance(e.func, ast.Attribute))
        kind = self.kind(e.func.value)
        if kind == CONTEXT:
            require(self.forward and e.func.attr == "save_for_backward" and not e.keywords and all(self.kind(a) in TENSORS for a in e.args))
            return
        require(kind == FRESH and isinstance(e.func.value, ast.Name) and e.func.attr.endswith("_") and e.func.attr[:-1] in WRITES)
        self.operands(e)

    def operands(self, call):
        kinds = [self.kind(a) for a in call.args] + [self.kind(k.value) for k in call.keywords]
        require(all(kind in TENSORS | {NUMBER} for kind in kinds) and all(k.arg not in (None, "out", "inplace") for k in call.keywords))
        return kinds

    def kind(self, e):
        if isinstance(e, ast.Constant):
            require(isinstance(e.value, LITERALS))
            return NUMBER
        if isinstance(e, ast.Name):
            return self.name(e.id)
        if isinstance(e, ast.BinOp):
            require(not isinstance(e.op, ast.MatMult))
            return self.combined(e.left, e.right, truth=isinstance(e.op, (ast.BitAnd, ast.BitOr, ast.BitXor)))
        if isinstance(e, ast.UnaryOp):
            kind = self.kind(e.operand)
            require(kind == NUMBER or (kind in TENSORS and not isinstance(e.op, (ast.Not, ast.UAdd))))
            return kind if kind in (NUMBER, TRUTH) else FRESH
        if isinstance(e, ast.Compare):
            require(len(e.ops) == 1)
            if isinstance(e.ops[0], (ast.Is, ast.IsNot)):
                require(self.kind(e.left) == NUMBER and self.kind(e.comparators[0]) == NUMBER)
                return NUMBER
            require(not isinstance(e.ops[0], (ast.In, ast.NotIn)))
            kind = self.combined(e.left, e.comparators[0])
            return TRUTH if kind == FRESH else kind
        if isinstance(e, ast.BoolOp):
            require(all(self.kind(v) == NUMBER for v in e.values))
            return NUMBER
        if isinstance(e, ast.IfExp):
            require(self.kind(e.test) == NUMBER)
            return self.either(self.kind(e.body), self.kind(e.orelse))
        if isinstance(e, ast.Subscript):
            require(self.kind(e.value) in (SAVED, FLAGS) and isinstance(e.slice, ast.Constant))
            return TENSOR if self.kind(e.value) == SAVED else NUMBER
        if isinstance(e, ast.Attribute):
            return self.attribute(e)
        require(isinstance(e, ast.Call))
        return self.call(e)

    def combined(self, a, b, truth=False):
        kinds = {self.kind(a), self.kind(b)}
        require(kinds <= TENSORS | {NUMBER})
        if kinds == {NUMBER}:
            return NUMBER
        return TRUTH if truth and kinds == {TRUTH} else FRESH

    def name(self, name):
        if name in self.locals:
            require(name in self.kinds)
            return self.kinds[name]
        value = self.found(name)
        if isinstance(value, (int, float)):
            self.numbers.append((self.cells[name], None) if name in self.cells else (self.globals, name))
        else:
            require(isinstance(value, torch.dtype))
        return NUMBER

    def found(self, name):
        require(name not in self.locals and (name in self.outer or name in self.builtins))
        return self.outer[name] if name in self.outer else self.builtins[name]

    def module(self, e):
        """The module that a dotted name stands for, or None."""
        if isinstance(e, ast.Name):
            return self.found(e.id) if e.id not in self.locals and (e.id in self.outer or e.id in self.builtins) else None
        if isinstance(e, ast.Attribute):
            base = self.module(e.value)
            return getattr(base, e.attr, None) if inspect.ismodule(base) else None
        return None

    def attribute(self, e):
        base = self.module(e.value)
        if base is not None:
            require((base is torch and isinstance(getattr(torch, e.attr, None), torch.dtype)) or (base is math and isinstance(getattr(math, e.attr, None), float)))
            return NUMBER
        kind = self.kind(e.value)
        if kind == CONTEXT:
            if e.attr in ("saved_tensors", "saved_variables"):
                return SAVED
            if e.attr == "needs_input_grad":
                require(not self.forward)
                return FLAGS
            require(e.attr in self.kept)
            return self.kept[e.attr]
        require(kind in TENSORS and e.attr in ("dtype", "device", "data", "requires_grad"))
        if e.attr == "requires_grad":
            require(self.forward)
            return WANTED
        return TENSOR if e.attr == "data" else NUMBER

    def call(self, e):
        if isinstance(e.func, ast.Name):
            function, kinds = self.found(e.func.id), self.operands(e)
            require(function in OF_NUMBERS and not e.keywords)
            if kinds in ([TENSOR], [FRESH]) and function is abs:
                return FRESH
            require(all(kind == NUMBER for kind in kinds))
            return NUMBER
        require(isinstance(e.func, ast.Attribute))
        name, base = e.func.attr, self.module(e.func.value)
        kinds = self.operands(e)
        if base is math:
            require(all(kind == NUMBER for kind in kinds))
            return NUMBER
        if base is None and self.kind(e.func.value) == FRESH and name.endswith("_"):
            name = name[:-1]
            require(name in WRITES)
        elif base is None:
            require(self.kind(e.func.value) in TENSORS and name in ELEMENTWISE | ALIASES)
        else:
            require((base is torch or base is torch.nn.functional) and name in ELEMENTWISE)
            require(any(kind in TENSORS for kind in kinds))
            require(base is torch or len(e.args) == 1)  # the second of relu() is `inplace`
        require(name != "where" or len(e.args) == (2 if base is None else 3))
        require(name != "type" or len(e.args) == 1)
        if name in ALIASES:
            return TRUTH if name == "bool" else FRESH if self.kind(e.func.value) in (FRESH, TRUTH) else TENSOR
        return TRUTH if name in TRUTHS else FRESH


# Of an element-wise Function: whether its result may lie in its argument's memory; the numbers that it reads of its surroundings; and the methods that were read.
Answer = modules["collections"].namedtuple("Answer", "view outside forward backward")


def read(function, which):
    """Whether a Function is element-wise, when its arguments are tensors where `which` says so. Of the others it takes numbers."""
    base = torch.autograd.Function
    own = [c for c in function.__mro__ if c not in base.__mro__]
    require(function.__mro__[len(own) :] == base.__mro__ and len(own) == 1)
    require(not {"setup_context", "vjp", "jvp", "vmap", "generate_vmap_rule", "apply"} & set(vars(own[0])))
    forward, backward = (vars(own[0]).get(name) for name in ("forward", "backward"))
    require(isinstance(forward, staticmethod) and isinstance(backward, staticmethod))
    first = Method(forward.__func__, {}, forward=True)
    made = first.read([CONTEXT] + [TENSOR if tensor else NUMBER for tensor in which])
    require(all(len(kinds) == 1 and kinds[0] in TENSORS for kinds in made))
    second = Method(backward.__func__, first.kept, forward=False)
    for kinds in second.read([CONTEXT, TENSOR]):
        require(len(kinds) == len(which))
        require(all(kind in TENSORS | {NUMBER, MAYBE} if tensor else kind == NUMBER for kind, tensor in zip(kinds, which)))
    return Answer(any(kinds[0] == TENSOR for kinds in made), first.numbers + second.numbers, forward, backward)


def answer(function, which):
    """None for a Function that is not known to be element-wise."""
    try:
        return read(function, which)
    except Exception:
        return None
