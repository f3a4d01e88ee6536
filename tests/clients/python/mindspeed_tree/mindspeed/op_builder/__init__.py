class FusedEmaAdamWOpBuilder:
    def load(self):
        raise RuntimeError("the operator is compiled with the toolkit of an NPU, and there is none")
