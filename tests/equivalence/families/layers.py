"""Layers and losses."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.nn.utils import parametrizations, rnn

from ..data import NUM_TOKENS, adamw, convolutional, fit, mlp, mlp_with, sgd
from ..registry import add, case
from ..run import Run


class Recurrent(nn.Module):
    """The last output of a recurrent layer."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.recurrent = kind(4, 6, batch_first=True, **options)
        self.head = nn.Linear(12 if options.get("bidirectional") else 6, 3)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.recurrent(x)[0][:, -1])


def recurrent(kind: Any, options: dict[str, Any], run: Run) -> None:
    model = Recurrent(kind, **options)
    fit(run, model, adamw(model), data="series")


add("an_RNN", partial(recurrent, nn.RNN, {}))
add("an_LSTM", partial(recurrent, nn.LSTM, {}), quick=True, elastic=True)
add("a_GRU", partial(recurrent, nn.GRU, {}))
add("an_LSTM_of_two_layers_in_both_directions", partial(recurrent, nn.LSTM, {"num_layers": 2, "bidirectional": True}))


@case()
def packed_sequences(run: Run) -> None:
    model = Recurrent(nn.GRU)

    def forward(x: Tensor) -> Any:
        lengths = (x[:, 0, 0] > 0).long() * 2 + 3
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return model.head(model.recurrent(packed)[1][-1])

    model.forward = forward
    fit(run, model, adamw(model), data="series")


@case()
def backpropagation_through_a_part_of_time(run: Run) -> None:
    model = Recurrent(nn.LSTM)
    model.forward = lambda x, state: model.recurrent(x, state)
    optimizer = adamw(model)
    parallel = run.wrap(model, optimizer, ddp={"find_unused_parameters": True})
    for x, y in run.own_loader("series"):
        state = None
        for start in (0, 2):
            output, state = parallel(x[:, start : start + 2], state)
            state = tuple(each.detach() for each in state)
            optimizer.zero_grad()
            loss = functional.mse_loss(output[:, -1, :3], y)
            loss.backward()
            optimizer.step()
        run.log(loss)


# Tokens.


def next_token(output: Tensor, y: Tensor) -> Any:
    return functional.cross_entropy(output.flatten(0, 1), y.flatten())


def language(embedding: nn.Module, width: int = 8) -> nn.Module:
    return nn.Sequential(embedding, nn.Linear(width, 16), nn.GELU(), nn.Linear(16, NUM_TOKENS))


@case(quick=True)
def an_embedding(run: Run) -> None:
    model = language(nn.Embedding(NUM_TOKENS, 8, padding_idx=0))
    fit(run, model, adamw(model), data="tokens", loss_of=next_token)


@case(as_ddp="frequencies within the rank's part")
def an_embedding_with_scale_grad_by_freq(run: Run) -> None:
    model = language(nn.Embedding(NUM_TOKENS, 8, scale_grad_by_freq=True))
    fit(run, model, sgd(model), data="tokens", loss_of=next_token)


@case(quick=True)
def a_sparse_embedding(run: Run) -> None:
    model = language(nn.Embedding(NUM_TOKENS, 8, sparse=True))
    fit(run, model, sgd(model, momentum=0.0), data="tokens", loss_of=next_token)


@case()
def a_sparse_embedding_with_SparseAdam(run: Run) -> None:
    embedding = nn.Embedding(NUM_TOKENS, 8, sparse=True)
    model = language(embedding)
    rest = optim.AdamW(list(model.parameters())[1:], lr=0.01)
    optimizer = optim.SparseAdam(list(embedding.parameters()), lr=0.01)
    fit(run, model, rest, data="tokens", loss_of=next_token, extra=[optimizer], after=optimizer.step)


@case(refused="ReplicasDiverged")
def an_embedding_with_max_norm(run: Run) -> None:
    model = language(nn.Embedding(NUM_TOKENS, 8, max_norm=1.0))
    fit(run, model, sgd(model), data="tokens", loss_of=next_token)


@case()
def a_bag_of_embeddings(run: Run) -> None:
    model = nn.Sequential(nn.EmbeddingBag(NUM_TOKENS, 8, mode="mean"), nn.Linear(8, NUM_TOKENS))
    fit(run, model, adamw(model), data="tokens", loss_of=lambda output, y: functional.cross_entropy(output, y[:, -1]))


class Tied(nn.Module):
    """A small GPT whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_TOKENS, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(8, NUM_TOKENS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.block(self.embedding(tokens), src_mask=mask, is_causal=True))


@case(quick=True, elastic=True)
def a_transformer_whose_head_is_its_embedding(run: Run) -> None:
    model = Tied()
    fit(run, model, sgd(model), data="tokens", loss_of=next_token)


@case(rounding=(1e-4, "the gradient of key biases is nothing but rounding, which AdamW makes a step of"))
def a_transformer_with_AdamW(run: Run) -> None:
    model = Tied()
    fit(run, model, adamw(model, lr=1e-3, eps=1e-4), data="tokens", loss_of=next_token)


# Other layers.


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.attention(x, x, x, need_weights=False)[0].flatten(1))


MODELS: Final[dict[str, tuple[Callable[[], nn.Module], str]]] = {
    "convolutions_in_1_dimension": (
        lambda: nn.Sequential(nn.Conv1d(5, 4, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)),
        "series",
    ),
    "convolutions_in_2_dimensions": (convolutional, "images"),
    "convolutions_in_3_dimensions": (
        lambda: nn.Sequential(nn.Conv3d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32, 3)),
        "volumes",
    ),
    "convolutions_in_groups": (lambda: convolutional(nn.Conv2d(6, 6, 1, groups=3)), "images"),
    "transposed_convolutions": (
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(147, 3)),
        "images",
    ),
    "pooling_and_pixel_shuffle": (
        lambda: nn.Sequential(nn.Conv2d(2, 8, 3), nn.PixelShuffle(2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 3)),
        "images",
    ),
    "multihead_attention": (Attention, "series"),
    "a_PReLU": (lambda: mlp_with(nn.PReLU(8)), "points"),
    "weight_norm": (lambda: mlp_with(parametrizations.weight_norm(nn.Linear(8, 8))), "points"),
    "an_orthogonal_parametrization": (lambda: mlp_with(parametrizations.orthogonal(nn.Linear(8, 8))), "points"),
    "spectral_norm_in_eval": (lambda: mlp_with(parametrizations.spectral_norm(nn.Linear(8, 8)).eval()), "points"),
}


def with_model(make: Callable[[], nn.Module], data: str, run: Run) -> None:
    model = make()
    fit(run, model, sgd(model), data=data)


for _name, (_make, _data) in MODELS.items():
    add(_name, partial(with_model, _make, _data), quick=_name == "weight_norm", elastic=_name == "weight_norm")


@case()
def spectral_norm(run: Run) -> None:
    """Its power iteration knows the weights only, so buffers are equal."""
    model = mlp_with(parametrizations.spectral_norm(nn.Linear(8, 8)))
    fit(run, model, sgd(model))


# Losses.


LOSSES: Final[dict[str, Callable[[Any, Tensor], Any]]] = {
    "cross_entropy_with_smoothed_labels": partial(functional.cross_entropy, label_smoothing=0.1),
    "binary_cross_entropy": lambda output, y: functional.binary_cross_entropy_with_logits(
        output[:, 0], (y > 1).float()
    ),
    "the_negative_log_likelihood": lambda output, y: functional.nll_loss(output.log_softmax(1), y),
    "a_multi_margin_loss": functional.multi_margin_loss,
    "focal_loss": lambda output, y: (
        (1 - output.softmax(1).gather(1, y[:, None])) ** 2
        * functional.cross_entropy(output, y, reduction="none")[:, None]
    ).mean(),
    "a_KL_divergence": lambda output, y: functional.kl_div(
        output.log_softmax(1), functional.one_hot(y, 3).float() * 0.8 + 0.1 / 1.5, reduction="batchmean"
    ),
}


def with_loss(loss_of: Any, run: Run) -> None:
    model = mlp()
    fit(run, model, adamw(model), data="classes", loss_of=loss_of)


for _name, _loss_of in LOSSES.items():
    add(_name, partial(with_loss, _loss_of), quick=_name == "cross_entropy_with_smoothed_labels")


@case(as_ddp="weights are divided by their sum over the rank's part")
def cross_entropy_with_weights_of_classes(run: Run) -> None:
    model = mlp()
    loss_of = partial(functional.cross_entropy, weight=torch.tensor([1.0, 2.0, 5.0]))
    fit(run, model, adamw(model), data="classes", loss_of=loss_of)


@case(as_ddp="the mean is over the targets of the rank's part that are not ignored")
def cross_entropy_that_ignores_some(run: Run) -> None:
    model = mlp()
    fit(run, model, adamw(model), data="classes", loss_of=partial(functional.cross_entropy, ignore_index=1))


@case()
def cross_entropy_that_ignores_some_and_says_how_many(run: Run) -> None:
    model = mlp()
    optimizer = adamw(model)
    parallel = run.wrap(model, optimizer)
    for x, y in run.loader("classes"):
        parallel.num_samples(int((y != 1).sum()))
        optimizer.zero_grad()
        loss = functional.cross_entropy(parallel(x), y, ignore_index=1, reduction="sum") / max(int((y != 1).sum()), 1)
        loss.backward()
        optimizer.step()
        run.log(loss)


@case()
def triplets(run: Run) -> None:
    model = mlp()
    optimizer = sgd(model)
    parallel = run.wrap(model, optimizer)
    for x, _ in run.loader():
        optimizer.zero_grad()
        loss = functional.triplet_margin_loss(parallel(x), parallel(x + 0.1), parallel(-x))
        loss.backward()
        optimizer.step()
        run.log(loss)


@case()
def CTC(run: Run) -> None:
    model = nn.Linear(4, 5)

    def loss_of(output: Tensor, y: Tensor) -> Any:
        targets = (y[:, :2] > 0.5).long() + 1 + torch.tensor([0, 2])
        lengths = torch.full((len(y),), 5), torch.full((len(y),), 2)
        return functional.ctc_loss(output.log_softmax(2).transpose(0, 1), targets, *lengths)

    fit(run, model, sgd(model), data="series", loss_of=loss_of)
