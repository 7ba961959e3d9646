# What in the program keeps tensors alive. Run by holders.cc inside the program's own Python, in a namespace that is thrown away: `modules` is
# sys.modules, and what a function answers goes back as text. It looks, and leaves nothing behind:
# - no import, no tensor made, no attribute of the program's own read but through the descriptors of C types, so none of its code runs;
# - a tensor is known by the address of its TensorImpl, for whatever else is asked of one may give a deferred one its value;
# - a function's locals are read through frame.f_locals, which up to Python 3.12 leaves a copy in the frame: that copy is emptied again;
# - whoever has more objects than can be walked in a moment is left alone.

sys = modules["sys"]
gc = modules["gc"]
torch = modules["torch"]

OBJECTS_AT_MOST = 1_000_000
WALKED_AT_MOST = 3_000_000  # objects, in all walks: no new one is begun after that (0.1 µs each; by number, so that a busy machine gives the same answer)
LEVELS = 5  # containers within containers
WIDTH = 12  # ways that are followed from one level to the next

objects_alive = 0
walked = 0
tensors = []  # (TensorImpl, tensor)

types = modules["types"]
collections = modules["collections"]
dicts = {dict, collections.OrderedDict, collections.defaultdict}
containers = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset", collections.deque: "deque"} | {kind: "dict" for kind in dicts}
suspended = {types.GeneratorType: "gi_code", types.CoroutineType: "cr_code", types.AsyncGeneratorType: "ag_code"}
passing = {types.FrameType, types.ModuleType, types.MethodType, types.BuiltinFunctionType}  # nothing is named after these


def survey():
    """The TensorImpls of all tensors that Python knows."""
    global objects_alive, walked
    kinds, more = set(), [torch.Tensor]
    while more:
        kind = more.pop()
        kinds.add(id(kind))
        more += type.__subclasses__(kind)
    impl_of = torch._C.TensorBase.__dict__["_cdata"].__get__
    objects = gc.get_objects()
    objects_alive = walked = len(objects)
    if objects_alive > OBJECTS_AT_MOST:
        return ""
    with torch._C.DisableTorchFunction():
        tensors.extend((impl_of(o), o) for o in objects if id(type(o)) in kinds)
    return " ".join(str(impl) for impl, _ in tensors)


def place(code):
    return f"{code.co_filename.replace(chr(92), '/').rsplit('/', 1)[-1]}:{code.co_firstlineno}"


def function_name(code):
    name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
    return f"{name}() at {place(code)}" if not name.startswith("<") else place(code)


def file_of(module_dict, name):
    file = module_dict.get("__file__")
    return file.rsplit("/", 1)[-1] if type(file) is str else name if name != "__main__" else "the program"


def copies_of_our_own():
    """sys.getrefcount of a frame's copy of its locals that nobody else holds, up to Python 3.12."""
    copy = sys._getframe().f_locals
    return sys.getrefcount(copy)


def locals_of(frame, ids):
    """Name and id of a function's variables that are among `ids`."""
    values = frame.f_locals
    if values is frame.f_globals:
        return []
    found = [(name, id(value)) for name, value in values.items() if id(value) in ids]
    code = frame.f_code
    if type(values) is dict and code.co_flags & 1 and sys.getrefcount(values) <= OURS:
        for name in code.co_varnames + code.co_cellvars + code.co_freevars:
            values.pop(name, None)  # they live on in the frame itself, so nothing is freed here
    return found


OURS = copies_of_our_own()


def frames():
    frame = sys._getframe()
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if frame.f_globals is not globals() and not (type(name) is str and name.split(".")[0] == "torch"):
            yield frame
        frame = frame.f_back


def attributes_of(thing):
    """Name and value of its attributes, where reading them runs none of the program's code."""
    kind = type(thing)
    if type in kind.__mro__:  # a class
        return list(type.__dict__["__dict__"].__get__(thing).items())
    pairs = []
    for owner in kind.__mro__:
        slot = owner.__dict__.get("__dict__")
        if slot is not None:
            values = slot.__get__(thing) if type(slot) is types.GetSetDescriptorType else None
            pairs += list(values.items()) if type(values) is dict else []
            break
    for owner in kind.__mro__:
        for name, slot in list(owner.__dict__.items()):
            if type(slot) is types.MemberDescriptorType and type(name) is str:
                try:
                    pairs.append((name, slot.__get__(thing)))
                except AttributeError:  # empty
                    pass
    return pairs


class Way:
    """One object that leads to the tensors: `words(name)` says how, given what the object is called; `below` is the level that it holds."""

    __slots__ = ("thing", "words", "below")

    def __init__(self, thing, words, below):
        self.thing, self.words, self.below = thing, words, below


passing.add(Way)


def named(level):
    """What a variable holds of this level: of a function that is running, the innermost first, or of a module. "" when none does."""
    for frame in frames():
        for name, found in locals_of(frame, level):
            return f"{level[found].words(f'`{name}`')}, a local variable of {function_name(frame.f_code)}"
    for module_name, module in list(modules.items()):
        if types.ModuleType not in type(module).__mro__ or module_name.split(".")[0] == "torch":
            continue
        values = types.ModuleType.__dict__["__dict__"].__get__(module)
        for name, value in list(values.items()):
            if id(value) in level:
                return f"{level[id(value)].words(f'`{name}`')}, a variable of {file_of(values, module_name)}"
    return ""


def by_attribute(holder, level):
    """The same of an attribute. The dict that attributes are kept in may be on the way, as a container."""
    within = dict(level)
    for way in level.values():
        if type(way.thing) is dict:
            within.update(way.below)
    kind = holder if type in type(holder).__mro__ else type(holder)
    for name, value in attributes_of(holder):
        if id(value) in within:
            return f"{within[id(value)].words(f'`{name}`')}, an attribute of {'the class' if kind is holder else 'a'} {kind.__name__} ({kind.__module__})"
    return ""


def by_function(holder, level):
    """The same of a function's closure or default arguments. The tuple that they are kept in may be on the way, as a container."""
    where = function_name(holder.__code__)
    within = dict(level)
    for values in (holder.__closure__, holder.__defaults__):
        if id(values) in level:
            within.update(level[id(values)].below)
    for name, cell in zip(holder.__code__.co_freevars, holder.__closure__ or ()):
        if id(cell) in within:
            return f"{within[id(cell)].words(f'`{name}`')}, in the closure of {where}"
    for value in holder.__defaults__ or ():
        if id(value) in within:
            return f"{within[id(value)].words('a default argument')} of {where}"
    return ""


def by_container(holder, level):
    """The words for a container, given its name; None when it holds nothing of the level."""
    kind = type(holder)
    for value in list(holder.values() if kind in dicts else holder):
        if id(value) in level:
            said = f"a {containers[kind]} of {len(holder)}"
            return lambda name: f"{name} ({said})"
    return None


def name_of(impls):
    """What keeps these tensors, in words; "" when it is not found."""
    global walked
    level = {id(t): Way(t, lambda name: name, {}) for impl, t in tensors if impl in impls}
    seen = set(level)
    for _ in range(LEVELS):
        if not level:
            return ""
        name = named(level)
        if name or walked > WALKED_AT_MOST:
            return name
        walked += objects_alive
        targets = [way.thing for way in level.values()]
        holders = gc.get_referrers(*targets)
        ours = {id(targets), id(tensors), id(seen)} | {id(pair) for pair in tensors}
        above = {}
        for holder in holders:
            kind = type(holder)
            if id(holder) in ours or id(holder) in seen or kind in passing:
                continue
            if kind in containers:
                words = by_container(holder, level)
                if words and len(above) < WIDTH:
                    above[id(holder)] = Way(holder, words, level)
            elif kind is types.CellType:
                above[id(holder)] = Way(holder, level[id(holder.cell_contents)].words, level)
            elif kind in suspended:
                return f"a local variable of {function_name(getattr(holder, suspended[kind]))}"
            else:
                name = by_function(holder, level) if kind is types.FunctionType else by_attribute(holder, level)
                if name:
                    return name
        seen.update(above)
        level = above
    return ""
