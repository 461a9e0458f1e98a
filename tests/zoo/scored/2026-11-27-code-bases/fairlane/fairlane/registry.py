class Registry(dict):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def register(self, name):
        def add(obj):
            if name in self:
                raise ValueError(f"duplicate {self.kind}: {name}")
            self[name] = obj
            return obj
        return add

    def build(self, name, *args, **kw):
        if name not in self:
            raise KeyError(f"unknown {self.kind} {name!r}; have {sorted(self)}")
        return self[name](*args, **kw)


TASKS, MODELS, CRITERIONS = Registry("task"), Registry("model"), Registry("criterion")
