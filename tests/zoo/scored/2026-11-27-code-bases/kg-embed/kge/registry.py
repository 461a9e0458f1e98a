class Registry(dict):
    def add(self, name):
        def deco(obj):
            if name in self:
                raise KeyError(f"{name} is already registered")
            self[name] = obj
            return obj
        return deco

    def create(self, name, *args, **kw):
        try:
            return self[name](*args, **kw)
        except KeyError:
            raise KeyError(f"no {name!r}; known: {sorted(self)}") from None


SCORERS = Registry()
