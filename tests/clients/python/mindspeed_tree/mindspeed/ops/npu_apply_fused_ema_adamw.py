from mindspeed.op_builder import FusedEmaAdamWOpBuilder

__all__ = ["npu_apply_fused_ema_adamw"]

OPERATOR = FusedEmaAdamWOpBuilder().load()


def npu_apply_fused_ema_adamw(*arguments):
    return OPERATOR.npu_apply_fused_ema_adamw(*arguments)
