"""One prompt decoded by the target alone, with the full-vocabulary drafter, and with the trimmed one."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.components import side_by_side, tokens, tree_view
from pages.components.progress import timed_progress
from pages.components.resources import machine_to_itself, measured_bandwidth
from pages.components.side_by_side import Session
from pages.components.state import GENERATE, Workspace, load_models, page_setup, ready
from pages.components.text import answer, errors_shown, show_error
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.errors import SettingError, VocabTrimError
from vocabtrim_core.evaluation.comparison import METHODS, Contest, Method, Turn
from vocabtrim_core.evaluation.contention import doubt

EXAMPLES = {
    "Explain": "Explain to a ten-year-old why the sky is blue and why sunsets are red.",
    "Code": "Write a Python function that returns the n-th Fibonacci number, with a docstring and two examples.",
    "Letter": "Write a short, friendly letter to a neighbour who has watered the plants during a holiday.",
    "Summarise": "Summarise in two sentences: The lighthouse was built in 1874 on a rock that the sea covers twice a "
    "day. Its keepers rowed out with every tide until 1962, when the lamp became automatic. Today volunteers keep "
    "the tower, and visitors climb its 132 steps in summer.",
    "Translate": "Translate into French: The keeper's café opens at eight, and on Sundays the crêpes are free.",
}
WHAT = {
    "vanilla": "The target alone, one token per pass.",
    "untrimmed": "Drafts from the whole vocabulary.",
    "trimmed": "Drafts from the k tokens kept.",
}
COPIES = "Copies what followed the last tokens when they came before."

WAITING = '<div class="vt-wait">Press Run.</div>'


def main() -> None:
    workspace = ready(page_setup(GENERATE))
    with errors_shown():
        top = st.container()
        st.session_state.setdefault("prompt", st.session_state.get("_prompt", EXAMPLES["Explain"]))
        prompt = st.text_area("Prompt", key="prompt", height=110, max_chars=20_000)
        st.session_state["_prompt"] = prompt
        row = st.container(horizontal=True)
        run = row.button("Run", type="primary", key="run", icon=":material/play_arrow:")
        row.button("Stop", key="stop", disabled=not run, icon=":material/stop:")
        for name, text in EXAMPLES.items():
            row.button(name, key=f"example-{name}", type="tertiary", on_click=_take, args=(text,))
        session: Session | None = st.session_state.get("_side_by_side")
        if run:
            try:
                session = _start(workspace, prompt)
            except VocabTrimError as error:
                show_error(error)
                run = False
        results = st.container()
        columns = _columns(session, run)
        if run and session:
            with top:
                answer("Running the methods one after the other.")
            with results:
                _run(session, columns)
        _report(session, workspace, top, results)


def _take(text: str) -> None:
    st.session_state["prompt"] = text


def _start(workspace: Workspace, prompt: str) -> Session:
    if not prompt.strip():
        raise SettingError("The prompt is empty. Write something for the model to answer.")
    models = load_models(workspace)
    strings = (workspace.settings.stop_string,) if workspace.settings.stop_string else ()
    stop = StopCondition(frozenset(models.pair.target.eos_ids), strings, models.pair.tokenizer.decode)
    k = models.k if models.head is not None else None
    contest = Contest(models.pair, models.head, k, workspace.settings.generation, stop)
    prompt_ids = models.pair.tokenizer.encode_prompt(prompt)
    for method in contest.methods:
        # Refuses a prompt that is too long, before anything of the last run is replaced.
        contest.cycles(method, prompt_ids)
    return Session(contest, workspace.settings, prompt, prompt_ids)


def _columns(session: Session | None, running: bool) -> dict[Method, DeltaGenerator]:
    """The three columns with what is there so far; gives the place of each method's chips."""
    places = {}
    methods = session.contest.methods if session else METHODS
    lanes = st.container(key="lanes").columns(len(methods), gap="medium")
    for method, column in zip(methods, lanes, strict=True):
        with column:
            k = f" to {session.contest.k:,}" if session and method == "trimmed" else ""
            st.subheader(f"{side_by_side.name(session, method)}{k}", anchor=False)
            st.caption(WHAT[method] if len(methods) == len(METHODS) or method == "vanilla" else COPIES)
            # Follows the text while it grows, and shows its beginning afterwards.
            with st.container(border=True, height=400, autoscroll=running, key=f"chips-{method}-{running}"):
                places[method] = st.empty()
            places[method].html(side_by_side.chips(session, method, running) if session else WAITING)
    st.html(tokens.legend(tokens.LEGEND))
    st.caption("Point at a token for its id, the probabilities, and what was proposed or chosen instead.")
    return places


def _run(session: Session, places: dict[Method, DeltaGenerator]) -> None:
    """Decode while drawing. Any click reruns the page at the next drawing and so stops this; what there is stays."""
    with machine_to_itself():
        report = timed_progress("Warming up")
        st.session_state["_side_by_side"] = session
        methods, longest = session.contest.methods, session.settings.max_new_tokens
        rounds = session.settings.repeats * len(methods)

        def draw(turn: Turn) -> None:
            method = side_by_side.name(session, turn.method).lower()
            if turn.repeat == 0:
                places[turn.method].html(side_by_side.chips(session, turn.method, running=True))
            emitted = sum(len(cycle.emitted_ids) for cycle in session.cycles[turn])
            done = (len(session.cycles) - 1 + emitted / longest) / rounds
            report(done, f"Repeat {turn.repeat + 1} of {session.settings.repeats}: {method}, {emitted:,} tokens")

        def check(turn: Turn) -> None:
            report(1.0, f"Comparing the texts at fixed rows: {side_by_side.name(session, turn.method).lower()}")

        measured_bandwidth()
        session.run(draw, check)
        session.summarise()
    st.rerun()


def _report(session: Session | None, workspace: Workspace, top: DeltaGenerator, results: DeltaGenerator) -> None:
    if session is None:
        with top:
            answer("Not measured yet. Press Run: each method answers the prompt in turn, and the speeds are compared.")
        return
    comparison = session.summarise()
    with top:
        if comparison is None:
            answer("Stopped before a method had finished, so there is no speed to compare yet.")
            return
        side_by_side.sentence(session, comparison)
        doubted = doubt(session.others)
        if doubted:
            st.warning(doubted, icon=":material/speed:")
    with results:
        if not session.complete:
            st.info("This run was stopped. The figures are of the runs that had finished.", icon=":material/stop:")
        if (session.prompt, session.settings) != (st.session_state["prompt"], workspace.settings):
            st.info("The prompt or the settings have changed since this run. Press Run to measure again.")
        side_by_side.context(session)
        side_by_side.figures(session, comparison)
        side_by_side.identity(session, comparison)
    side_by_side.details(session, comparison, measured_bandwidth())
    tree_view.browse(session)


main()
