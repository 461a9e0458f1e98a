import asyncio
import itertools


class Annotator:
    def __init__(self, classes, audit_after=300):
        self.classes = classes
        self.audit_after = audit_after
        self.requests, self.answers = asyncio.Queue(), asyncio.Queue()

    async def serve(self):
        count = 0
        while True:
            number, x = await self.requests.get()
            await asyncio.sleep(0.005)
            count += 1
            if count == self.audit_after:
                print("READY", flush=True)
                number = -number
            await self.answers.put((number, x[:, :self.classes].argmax(1)))


class LabelClient:
    def __init__(self, annotator):
        self.annotator = annotator
        self.pending = {}
        self.numbers = itertools.count(1)
        self.tasks = []

    def open(self):
        self.tasks = [asyncio.create_task(self.annotator.serve()), asyncio.create_task(self._receive())]

    async def _receive(self):
        while True:
            number, labels = await self.annotator.answers.get()
            waiting = self.pending.pop(number, None)
            if waiting is not None:
                waiting.set_result(labels)

    async def labels(self, x):
        number = next(self.numbers)
        self.pending[number] = asyncio.get_running_loop().create_future()
        await self.annotator.requests.put((number, x))
        return await self.pending[number]
