# The program's autograd.Functions that a rule names (KOILA_RULES, or one of koila's own), as operators. Run by own_functions.cc behind own_functions.py, in the same namespace.
#
# Note [Functions with a rule]
# A line such as `mylib.functions.FusedLinear(x: Shard(0), weight: Replicate) -> Shard(0)` promises of a Function what it promises of an operator: which tensors are made of rows, and that its forward and backward methods do with some
# of them what they do with all. Its calls become those of an operator whose kernel is the Function's own apply(), so that its own backward runs on the rows of a micro-batch. The operator's arguments are the parameters of forward():
# tensors, and whole numbers, since a rule may say of these that they count rows. What else the call has is the same for all rows, and is remembered: numbers and texts by their value, objects by who they are, as long as they live. The tensors that these hold (the
# scales of a quantised weight) are arguments as well, so that they have their values when the Function reads them, and have not been written to since when it runs again.

FUNCTIONS = "koila_function"  # the operators' namespace: see operator_of_function() in runtime/rule_text.h
DECLARED_AT_MOST = 1 << 20  # calls that are told apart
HELD_AT_MOST = 256  # objects that are looked into, for each call
OF_SCHEMA = {"t": "Tensor", "n": "Tensor?", "i": "int", "m": "Tensor?"}  # tensors, None, whole numbers, and what is left to its default
weakref = modules["weakref"]
declared, declared_numbers, function_operators = [], {}, {}
promises = weakref.WeakKeyDictionary()
Promise = modules["collections"].namedtuple("Promise", "operator names results")


def promise_of(function):
    """What a rule promises of the Function, and the names of its arguments; None: there is no rule."""
    promise = promises.get(function, False)
    if promise is False:
        promise = promises[function] = read_promise(function)
    return promise


def read_promise(function):
    name = f"{function.__module__}.{function.__qualname__}"
    results = torch.ops.koila.results_of_function(name)
    code = getattr(inspect.unwrap(function.forward), "__code__", None)
    if results == 0 or code is None or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) or code.co_kwonlyargcount:
        return None
    with_context = function.setup_context is level.setup_context
    return Promise(name.replace(".", "__"), code.co_varnames[: code.co_argcount][1 if with_context else 0 :], results)


def operator_for(promise, pattern):
    """None where it cannot be: another Function of this name has other arguments."""
    arguments = ", ".join(f"{OF_SCHEMA[letter]} {name}" for letter, name in zip(pattern, promise.names) if letter in OF_SCHEMA)
    schema = f"{promise.operator}.{pattern}({arguments}, Tensor[] koila_held, int koila_call) -> " + ("Tensor" if promise.results == 1 else f"({', '.join(['Tensor'] * promise.results)})")
    if schema not in function_operators:
        function_operators[schema] = None
        try:
            function_library.define(schema)
            function_library.impl(f"{promise.operator}.{pattern}", run_declared, "CompositeImplicitAutograd")
            function_operators[schema] = getattr(getattr(getattr(torch.ops, FUNCTIONS), promise.operator), pattern)
        except RuntimeError:
            pass
    return function_operators[schema]


def is_literal(argument):
    return type(argument) in LITERALS or (type(argument) is tuple and all(is_literal(a) for a in argument))


def exactly_all(literal):
    return tuple(map(exactly_all, literal)) if type(literal) is tuple else exactly(literal)


def held_by(objects):
    """The tensors that objects hold, and those that these hold."""
    found, seen = [], set()
    while objects and len(seen) < HELD_AT_MOST:
        thing = objects.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            if type(thing) in (Tensor, Parameter) and thing.layout is strided:
                found.append(thing.detach() if thing.requires_grad else thing)
        elif type(thing) in (tuple, list):
            objects.extend(thing)
        elif type(thing) is dict:
            objects.extend(thing.values())
        elif not isinstance(thing, (type, inspect.types.ModuleType, inspect.types.FunctionType)):
            objects.extend(getattr(thing, "__dict__", {}).values())
    return found


def declared_call(function, arguments):
    """The operator that stands for the call, and its arguments. None where no rule names the Function, or the operator cannot stand for this call."""
    promise = promise_of(function)
    if promise is None or len(arguments) > len(promise.names):
        return None
    pattern, given, key, wanted = "", [], [], False
    for a, name in zip(arguments, promise.names):
        if isinstance(a, Tensor):
            if type(a) not in (Tensor, Parameter) or a.layout is not strided or name == "out":  # what is written to
                return None
            wanted = wanted or a.requires_grad
            pattern += "t"
        elif a is None or type(a) is int:
            pattern += "n" if a is None else "i"
        else:
            pattern += "x"
            key.append(exactly_all(a) if is_literal(a) else id(a))
            continue
        given.append(a)
    left = len(promise.names) - len(arguments)
    pattern, given = pattern + "m" * left, given + [None] * left
    number = call_number((function, pattern, *key), arguments) if wanted else None
    operator = operator_for(promise, pattern) if number is not None else None
    return None if operator is None else (operator, [*given, held_by([a for letter, a in zip(pattern, arguments) if letter == "x"]), number])


def call_number(key, arguments):
    number = declared_numbers.get(key)
    if number is None and len(declared) < DECLARED_AT_MOST:
        number = len(declared)

        def gone(_):
            declared_numbers.pop(key, None)
            declared[number] = None

        try:
            template = [Ellipsis if letter in OF_SCHEMA else a if is_literal(a) else weakref.ref(a, gone) for letter, a in zip(key[1], arguments)]
        except TypeError:  # a list, say: nobody tells when it is another
            return None
        declared_numbers[key] = number
        declared.append((key[0], template))
    return number


def run_declared(*operands):
    call = declared[operands[-1]]
    arguments, given = [], iter(operands)  # what is left to its default stands at the end, and is not asked for
    for part in call[1] if call is not None else ():
        part = next(given) if part is Ellipsis else part
        arguments.append(part() if isinstance(part, weakref.ref) else part)
    if call is None:
        raise torch.OutOfMemoryError("koila: an object that an autograd.Function was called with is gone, and it is to run again.")
    return super(level, call[0]).apply(*arguments)


def define_functions():
    global function_library
    function_library = torch.library.Library(FUNCTIONS, "FRAGMENT")
