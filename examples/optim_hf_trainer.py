"""The optimizers in Hugging Face's Trainer: a tiny random model, an EMA of its weights, and evaluation with them.

pip install 'anyfuse[hf]'
python examples/optim_hf_trainer.py
"""

from __future__ import annotations

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import anyfuse

STEPS = 8


class Sequences(torch.utils.data.Dataset):
    """Counting up, modulo the vocabulary."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(16) + index) % 32
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=64, n_layer=1, n_head=2))
    optimizer = anyfuse.optim.EMAAdamW(model.parameters(), lr=1e-2, state_bits=8, ema_decay=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=STEPS + 1)
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            directory, max_steps=STEPS, per_device_train_batch_size=16, use_cpu=True, report_to=[], disable_tqdm=True
        )
        trainer = Trainer(
            model, arguments, train_dataset=Sequences(), eval_dataset=Sequences(), optimizers=(optimizer, schedule)
        )
        trainer.train()
        trained = trainer.evaluate()["eval_loss"]
        with optimizer.swap_ema():
            averaged = trainer.evaluate()["eval_loss"]
    print(f"loss {trained:.3f}, with the EMA's weights {averaged:.3f}")


if __name__ == "__main__":
    main()
