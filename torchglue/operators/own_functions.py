# The program's autograd.Functions that work element by element, as operators. Run once by own_functions.cc inside the program's own Python, in a namespace that stays: `modules` is sys.modules.
#
# Note [Functions as operators]
# An autograd.Function runs once, at the full batch, since nobody knows what it does with its rows. Of one whose forward and backward methods are made of element-wise operations alone that is
# known, and their text shows it: an activation with a gradient of its own, a gradient that is turned round, a sign that lets gradients through. What the text may have is listed in element_wise.py, and whatever
# else it has leaves the Function as it is: a name that is not known, a size, a loop, a random draw, a write to anything but what the method itself has made. Such a text has no effects either, so that
# a backward method that ran out of memory may be called again.
# The call is then one of an operator, koila::function (or koila::function_view, where the result may be a view of the argument), whose kernel is the Function's own apply(): at the full batch, and on the rows of a micro-batch.

CALLS_AT_MOST = 4096  # that are told apart: a Function with an argument that changes in each step has many
CLASSES_AT_MOST = 256  # that are read: a program may make one in each step


def exactly(value):
    """To be compared: 0.0 and -0.0 are two, and so are 1 and True."""
    return (type(value), value.hex() if type(value) is float else value)


def value_of(number):
    where, name = number
    return exactly(where.cell_contents if name is None else where.get(name))


# Behind Function.apply(), which programs keep (`spike = Spike.apply`): what that calls, where no transform of torch.func is at work.
level = torch.autograd.function._SingleLevelFunction
answers = modules["weakref"].WeakKeyDictionary()
numbers, calls, classes_read = {}, [], 0
Tensor, Parameter, strided = torch.Tensor, torch.nn.Parameter, torch.strided
makes_gradients, modes, function_modes, traced = torch.is_grad_enabled, torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack, torch._C._get_tracing_state


def answer_for(function, which):
    global classes_read
    known = answers.get(function)
    if known is None:
        known = answers[function] = {}
        classes_read += 1
    if which not in known:
        known[which] = answer(function, which) if 1 <= sum(which) <= 3 and classes_read <= CLASSES_AT_MOST else None
    found = known[which]
    if found is None or (found.view and sum(which) > 1) or function.__dict__["forward"] is not found.forward or function.__dict__["backward"] is not found.backward:
        return None
    return found


def number_of(function, arguments):
    """Of the call, where it can be an operator's; else None."""
    which = tuple(isinstance(a, Tensor) for a in arguments)
    found = answer_for(function, which)
    if found is None:
        return None
    sizes, wanted, rest = None, False, []
    for a, tensor in zip(arguments, which):
        if not tensor:
            if type(a) not in LITERALS:
                return None
            rest.append(exactly(a))
        elif type(a) not in (Tensor, Parameter) or a.layout is not strided or (sizes is not None and a.shape != sizes):
            return None
        else:
            sizes = a.shape
            wanted = wanted or a.requires_grad
    values = [value_of(number) for number in found.outside]
    if not wanted or not all(kind in (int, float, bool) for kind, _ in values):
        return None
    key = (function, which, *rest, *values)
    number = numbers.get(key)
    if number is None and len(calls) < CALLS_AT_MOST:
        number = numbers[key] = len(calls)
        calls.append((function, tuple(Ellipsis if tensor else a for a, tensor in zip(arguments, which)), found.outside, values, found.view))
    return number


def run(a, b, c, call):
    function, template, outside, values, _ = calls[call]
    if [value_of(number) for number in outside] != values:
        raise torch.OutOfMemoryError(f"koila: a number that {function.__name__} reads has changed since it was called, and it is to run again.")
    tensors = iter((a, b, c))
    return super(level, function).apply(*(next(tensors) if part is Ellipsis else part for part in template))


def apply(cls, *args, **kwargs):
    if kwargs or not issubclass(cls, torch.autograd.Function) or not makes_gradients() or modes() or function_modes() or traced() is not None:
        return super(level, cls).apply(*args, **kwargs)
    number = number_of(cls, args)
    if number is None:
        declared = declared_call(cls, args)
        return super(level, cls).apply(*args) if declared is None else declared[0](*declared[1])
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    if calls[number][-1]:
        return view_operator(*tensors, number)
    return operator(*tensors, *(None,) * (3 - len(tensors)), number)


def take_over():
    global library, operator, view_operator
    library = torch.library.Library("koila", "FRAGMENT")
    define_functions()
    library.impl("function", run, "CompositeImplicitAutograd")
    library.impl("function_view", lambda a, call: run(a, None, None, call), "CompositeImplicitAutograd")
    operator, view_operator = torch.ops.koila.function.default, torch.ops.koila.function_view.default
    level.apply = classmethod(apply)
