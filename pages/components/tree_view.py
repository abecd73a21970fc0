"""What was drafted in one cycle: the tree, how likely drafter and target found each token, and what became of it."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Literal

import plotly.graph_objects as go
import streamlit as st
from plotly.subplots import make_subplots

from pages.components import tokens
from pages.components.charts import BLUE, GREY, ORANGE, VIOLET
from pages.components.side_by_side import Session, name
from pages.components.text import plain
from vocabtrim_core.decoding.engine import Cycle
from vocabtrim_core.evaluation.comparison import METHODS, Method
from vocabtrim_core.token_text import readable_tokens
from vocabtrim_core.tokenization import Tokenizer

Fate = Literal["before", "accepted", "rejected", "discarded", "correction", "outside", "bonus", "vanilla"]

GREEN, RED = "#20a064", "#d64045"
# Colour, marker, and the sign before the text, which are those of the chips.
LOOKS: dict[Fate, tuple[str, str, str]] = {
    "before": (GREY, "circle", ""),
    "accepted": (GREEN, "circle", ""),
    "rejected": (RED, "x", "× "),
    "discarded": (GREY, "circle-open", ""),
    "correction": (ORANGE, "diamond", "→ "),
    "outside": (VIOLET, "diamond-open", "∉ "),
    "bonus": (BLUE, "square", "+ "),
    "vanilla": (GREY, "square", ""),
}
NAMES: dict[Fate, str] = {
    "before": "before the draft",
    "outside": "correction from outside k",
    "vanilla": "no draft",
}
STANDS: tuple[Fate, ...] = ("before", "accepted", "correction", "outside", "bonus", "vanilla")
LONGEST = 24  # characters of a token
CONTEXT = 24  # tokens
# Pixels a row: comfortable, and where there are many.
ROW, DENSE_ROW, DENSE_FROM = 26, 17, 48


@dataclass(frozen=True)
class Node:
    """A token in the picture, a row of its own: `parent` is the row of the token that it follows, `depth` counts from
    the last token before the draft, which is row 0. A probability is None where nobody worked it out."""

    token_id: int
    parent: int
    depth: int
    fate: Fate
    draft_prob: float | None
    target_prob: float | None
    note: str

    @property
    def stands(self) -> bool:
        return self.fate in STANDS


def nodes_of(cycle: Cycle, before_id: int) -> list[Node]:
    """The cycle's tokens after `before_id`, from the top down and siblings in the order in which they were tried; the
    target's own token comes after those that it was chosen instead of."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(cycle.parents):
        children.setdefault(parent, []).append(node)
    last = cycle.path[-1] if cycle.path else -1
    found = [Node(before_id, -1, 0, "before", None, None, "the last token before this cycle")]

    def add(parent: int, row: int, depth: int) -> None:
        for node in children.get(parent, []):
            fate, note = _fate(cycle, node, parent, children[parent])
            drafted, wanted = cycle.draft_probs[node], cycle.target_probs[node]
            found.append(Node(cycle.drafted_ids[node], row, depth, fate, drafted, wanted, note))
            add(node, len(found) - 1, depth + 1)
        if parent == last and cycle.own_token is not None:
            found.append(_own(cycle, row, depth))

    add(-1, 0, 1)
    return found


def _fate(cycle: Cycle, node: int, parent: int, siblings: list[int]) -> tuple[Fate, str]:
    if node in cycle.path:
        return "accepted", "accepted"
    if parent != -1 and parent not in cycle.path:
        return "discarded", "discarded: it follows a token that was not accepted"
    standing = next((other for other in siblings if other in cycle.path), None)
    if standing is not None and standing < node:
        return "discarded", "discarded: another one was accepted before its turn"
    if standing is None and cycle.own_token is None:
        return "discarded", "discarded: the text had ended"
    return "rejected", "rejected: the target did not agree"


def _own(cycle: Cycle, row: int, depth: int) -> Node:
    fate: Fate = cycle.own_token or "vanilla"
    note = {
        "correction": "correction: the target's own token in place of the rejected ones",
        "bonus": "bonus: the target's own token after a draft that was accepted to its end",
        "vanilla": "the target's own token; nothing was drafted",
    }[fate]
    if cycle.out_of_vocabulary:
        fate, note = "outside", f"{note}; the drafter's kept tokens do not include this one"
    return Node(cycle.emitted_ids[-1], row, depth, fate, None, cycle.next_prob, note)


def figure(nodes: list[Node], tokenizer: Tokenizer) -> go.Figure:
    """The tree with a row a token, further right the deeper it is, beside both models' probabilities of each token."""
    texts = readable_tokens(tokenizer, (node.token_id for node in nodes))
    titles = ("draft, by depth", "drafter", "target")
    widths = [0.64, 0.18, 0.18]
    drawn = make_subplots(1, 3, shared_yaxes=True, column_widths=widths, horizontal_spacing=0.02, subplot_titles=titles)
    for stands, line in ((False, {"color": GREY, "width": 1}), (True, {"color": GREEN, "width": 3})):
        drawn.add_trace(_edges(nodes, stands).update(line=line, opacity=1 if stands else 0.6), 1, 1)
    for fate in LOOKS:
        rows = [row for row, node in enumerate(nodes) if node.fate == fate]
        if rows:
            drawn.add_trace(_markers(nodes, texts, fate, rows), 1, 1)
    for column, probs in ((2, [node.draft_prob for node in nodes]), (3, [node.target_prob for node in nodes])):
        drawn.add_trace(_bars(nodes, probs), 1, column)
    return _laid_out(drawn, nodes)


def _edges(nodes: list[Node], stands: bool) -> go.Scatter:
    """Down from each token and then right to those that follow it, as in a list of folders."""
    x: list[float | None] = []
    y: list[float | None] = []
    for row, node in enumerate(nodes[1:], start=1):
        if node.stands == stands:
            x += [node.depth - 1, node.depth - 1, node.depth, None]
            y += [node.parent, row, row, None]
    return go.Scatter(x=x, y=y, mode="lines", hoverinfo="skip", showlegend=False)


def _markers(nodes: list[Node], texts: list[str], fate: Fate, rows: list[int]) -> go.Scatter:
    colour, symbol, _ = LOOKS[fate]
    return go.Scatter(
        x=[nodes[row].depth for row in rows],
        y=rows,
        text=[_label(texts[row], fate) for row in rows],
        hovertext=[_hover(nodes[row], texts[row]) for row in rows],
        hoverinfo="text",
        mode="markers+text",
        textposition="middle right",
        marker={"color": colour, "symbol": symbol, "size": 11 if nodes[rows[0]].stands else 8},
        opacity=1 if nodes[rows[0]].stands else 0.75,
        name=NAMES.get(fate, fate),
    )


def _bars(nodes: list[Node], probs: list[float | None]) -> go.Bar:
    return go.Bar(
        x=[prob or 0.0 for prob in probs],
        y=list(range(len(nodes))),
        text=[_percent(prob) for prob in probs],
        textposition="outside",
        orientation="h",
        cliponaxis=False,
        hoverinfo="skip",
        showlegend=False,
        marker={
            "color": [LOOKS[node.fate][0] for node in nodes],
            "opacity": [0.85 if node.stands else 0.35 for node in nodes],
        },
    )


def _laid_out(drawn: go.Figure, nodes: list[Node]) -> go.Figure:
    deepest = max(node.depth for node in nodes)
    dense = len(nodes) >= DENSE_FROM
    drawn.update_yaxes(range=[len(nodes) - 0.4, -0.6], visible=False)
    drawn.update_xaxes(showgrid=False, zeroline=False, fixedrange=True)
    # Room on the right for the text of the deepest token.
    drawn.update_xaxes(range=[-0.25, 1.4 * deepest + 0.4], tickvals=list(range(1, deepest + 1)), col=1)
    for column in (2, 3):
        drawn.update_xaxes(range=[0, 1.3], showticklabels=False, col=column)
    return drawn.update_layout(
        height=174 + len(nodes) * (DENSE_ROW if dense else ROW),
        margin={"l": 8, "r": 8, "t": 112, "b": 24},
        bargap=0.35,
        font_size=11 if dense else 13,
        legend={"orientation": "h", "yref": "container", "yanchor": "top", "y": 1, "xanchor": "left", "x": 0},
    )


def _label(text: str, fate: Fate) -> str:
    """Plotly reads some HTML in texts, so that the token's own is escaped."""
    shown = html.escape(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…", quote=False)
    signed = f"  {LOOKS[fate][2]}{f'<s>{shown}</s>' if fate == 'rejected' else shown}"
    return f"<b>{signed}</b>" if fate in STANDS and fate != "before" else signed


def _hover(node: Node, text: str) -> str:
    probs = {"drafter": node.draft_prob, "target": node.target_prob}
    said = ", ".join(f"{who} {_percent(prob)}" for who, prob in probs.items() if prob is not None)
    token = html.escape(f"“{text}” (id {node.token_id})", quote=False)
    return "<br>".join(filter(None, [token, html.escape(node.note, quote=False), said]))


def _percent(prob: float | None) -> str:
    if prob is None:
        return ""
    if 0 < prob < 0.001:
        return "&lt;0.1%"
    return f"{prob:.0%}" if prob >= 0.0995 or prob == 0 else f"{prob:.1%}"


@st.fragment
def browse(session: Session) -> None:
    """Choose a cycle of the shown runs, and see its draft. A fragment: the rest of the page stays as it is."""
    methods = [method for method in METHODS[1:] if session.shown(method)]
    if not methods:
        return
    st.subheader("What was drafted in a cycle", anchor=False)
    method, number = _chosen(session, methods)
    cycles = session.shown(method)
    cycle, output = cycles[number - 1], [token for one in cycles[: number - 1] for token in one.emitted_ids]
    before = [*session.prompt_ids, *output]
    st.html(_context(session, output) + tokens.decoded_chips([cycle], session.tokenizer, before[-1:]))
    nodes = nodes_of(cycle, before[-1])
    st.plotly_chart(figure(nodes, session.tokenizer), alt="The draft of the chosen cycle as a tree", key="tree_figure")
    st.caption(plain(_told(cycle, session.settings.temperature == 0)))


def _context(session: Session, output: list[int]) -> str:
    """The end of the text so far, as HTML."""
    start = max(0, len(output) - CONTEXT)
    before = [*session.prompt_ids, *output[:start]][-1:]
    texts = [text for _, text in tokens.grouped(session.tokenizer, output[start:], before)]
    return f'<div class="vt-muted">{"…" if start else ""}{html.escape("".join(texts))}</div>'


def _chosen(session: Session, methods: list[Method]) -> tuple[Method, int]:
    state = st.session_state
    if state.get("tree_method") not in methods:
        state["tree_method"] = methods[-1]
    left, right = st.columns([1, 2], gap="large", vertical_alignment="bottom")
    method = left.segmented_control(
        "Method", methods, format_func=lambda one: name(session, one), key="tree_method", required=True
    )
    assert method is not None, "one is always chosen"
    cycles = session.shown(method)
    lengths = [len(cycle.emitted_ids) for cycle in cycles]
    # At first the cycle that gained most; another run may have fewer cycles than the one chosen in the last.
    state["tree_cycle"] = min(state.get("tree_cycle") or 1 + lengths.index(max(lengths)), len(cycles))
    number = right.number_input(f"Cycle, 1 to {len(cycles):,}", 1, len(cycles), key="tree_cycle")
    return method, int(number)


def _told(cycle: Cycle, greedy: bool) -> str:
    """The picture in words."""
    drafted, depth = len(cycle.drafted_ids), cycle.depth
    if not drafted:
        return "Nothing was drafted in this cycle, so the target added one token of its own."
    what = "one after the other" if depth == drafted else f"as a tree {depth} deep"
    own = {
        "correction": ", and one of the target's own in place of those rejected",
        "bonus": ", and one more of the target's own",
    }.get(cycle.own_token or "", "")
    outside = " The drafter does not keep that one, so it could not propose it." if cycle.out_of_vocabulary else ""
    law = "plain softmax" if greedy else "after temperature and, where the accept rule looked, the filters"
    return (
        f"Drafted: {drafted:,} ({what}). Accepted: {cycle.accepted:,}{own}.{outside} The bars are both models' "
        f"probabilities, each of the token after those before it on its path ({law}). Siblings stand in the order in "
        "which they are tried."
    )
