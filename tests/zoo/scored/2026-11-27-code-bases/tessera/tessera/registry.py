_table = {}


def register(kind):
    def deco(cls):
        _table[kind, cls.__name__] = cls
        return cls

    return deco


def build(kind, spec, **extra):
    spec = dict(spec)
    return _table[kind, spec.pop("type")](**spec, **extra)
