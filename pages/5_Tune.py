"""Which k and gamma to ship: acceptance at every point from one pass, predicted and measured speed."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from urllib.parse import urlencode

import pandas as pd
import streamlit as st

from pages.components import tune_charts
from pages.components.downloads import download
from pages.components.progress import cancel_button, timed_progress
from pages.components.ranking import pin
from pages.components.resources import machine_to_itself
from pages.components.shape_lab import shape_lab
from pages.components.state import RANKING_SETTINGS, TUNE, Models, Workspace, load_models, page_setup, ready
from pages.components.tables import table
from pages.components.text import answer, errors_shown, plain
from pages.components.tune_report import Section, command, csv, curve_frame, report
from pages.components.tuning import TuneSession, asked, start
from vocabtrim_core import __version__
from vocabtrim_core.corpora import CorpusFile
from vocabtrim_core.decoding.context import context_notes
from vocabtrim_core.errors import CorpusError
from vocabtrim_core.evaluation.advice import RULE, advice, against_measurement, in_words
from vocabtrim_core.evaluation.contention import doubt, moment, others_since
from vocabtrim_core.evaluation.measuring import VANILLA
from vocabtrim_core.evaluation.papers import PUBLISHED
from vocabtrim_core.evaluation.replay import Replay
from vocabtrim_core.evaluation.tables import HEADINGS, TaskTable, task_table
from vocabtrim_core.evaluation.trace import TunePrompt
from vocabtrim_core.evaluation.tuning import Tuned
from vocabtrim_core.prompts import TASKS, Prompt, parse_prompts, task_prompts
from vocabtrim_core.token_text import readable_tokens
from vocabtrim_core.trees import DraftShape

PINNABLE = 30
LISTED = 100
REPORTED = 30
TASK_WORDS = (
    "MT: translation; Conv.: conversation; RAG: answers from given passages; Summ.: summaries. τ is the acceptance "
    "length, in brackets the share kept of the full vocabulary's."
)


def main() -> None:
    workspace = ready(page_setup(TUNE))
    with errors_shown():
        top = st.container()
        chosen, gammas = _inputs()
        key = asked(workspace.settings, tuple(chosen), gammas)
        session: TuneSession | None = st.session_state.get("_tune")
        row = st.container(horizontal=True)
        if row.button("Tune", type="primary", key="tune", icon=":material/tune:", disabled=not chosen):
            cancel_button(row, "cancel_tune")
            meanwhile = top.empty()
            with meanwhile:
                answer("Tuning: the target answers the prompts, then the drafter reads the answers once.")
            session = _start(workspace, chosen, key, gammas)
            meanwhile.empty()
        if session is None:
            with top:
                answer(
                    "Not tuned yet. Press Tune: the target answers the prompts, the drafter reads the answers once, "
                    "and that gives the acceptance at every k and gamma."
                )
        elif session.asked[:3] != key[:3]:
            with top:
                answer("The models have changed since the last tuning. Press Tune.")
        else:
            _results(session, workspace, key, top)
        shape_lab()


def _inputs() -> tuple[list[Prompt], tuple[int, ...]]:
    """The prompts and the draft lengths that the page asks for."""
    state = st.session_state
    kept = state.setdefault("_tune_inputs", {"tune_tasks": list(TASKS), "tune_limit": 2, "tune_gammas": 6})
    for name, value in kept.items():
        state.setdefault(name, value)
    with st.container(border=True):
        left, middle, right = st.columns([3, 1, 1], gap="medium")
        tasks = left.pills(
            "Held-out prompts", TASKS, selection_mode="multi", key="tune_tasks", format_func=lambda task: HEADINGS[task]
        )
        limit = middle.slider("Prompts per task", 1, 22, key="tune_limit")
        longest = right.slider("gamma up to", 1, 8, key="tune_gammas")
        file = left.file_uploader(
            "Or your own: JSONL with turns, prompt or messages (Spec-Bench and HumanEval as they are)",
            type=["jsonl", "gz"],
            key="tune_upload",
            max_upload_size=20,
        )
        state["_tune_inputs"] = {"tune_tasks": tasks, "tune_limit": limit, "tune_gammas": longest}
        found = parse_prompts(CorpusFile(file.name, file.getvalue()), file.name) if file else task_prompts()
        if not found:
            raise CorpusError("The file holds no prompts.")
        chosen: list[Prompt] = []
        for task in dict.fromkeys(prompt.task for prompt in found):
            if file or task in tasks:
                chosen += [prompt for prompt in found if prompt.task == task][:limit]
        words = sum(len(prompt.text.split()) for prompt in chosen)
        st.caption(
            f"{len(chosen)} prompts of {words:,} words in all; the answers are as long as “New tokens at most” in the "
            "sidebar allows."
        )
    return chosen, tuple(range(1, longest + 1))


def _start(workspace: Workspace, chosen: list[Prompt], key: tuple, gammas: tuple[int, ...]) -> TuneSession:
    models = load_models(workspace)
    tokenizer = models.pair.tokenizer
    prompts = [
        TunePrompt(tuple(tokenizer.encode_prompt(prompt.text)), prompt.task or "", prompt.where or "")
        for prompt in chosen
    ]
    with machine_to_itself():
        place = st.empty()
        show, began = timed_progress("The target answers the prompts", place), moment()
        session = start(models, workspace.settings, prompts, key, gammas, show)
        tuned = session.tuned(models, workspace.settings, show)
        shape = _shape(workspace)
        if shape is not None:
            session.replay(models, shape, tuned, show)
        place.empty()
        session.others = others_since(began)
    st.session_state["_tune"] = session
    return session


def _results(session: TuneSession, workspace: Workspace, key: tuple, top: st.delta_generator.DeltaGenerator) -> None:
    models = load_models(workspace)
    notice = st.empty()
    # The profile is there, so nothing is timed: only the curve of this ranking is worked out.
    tuned = session.tuned(models, workspace.settings, lambda share, text: None)
    best = tuned.recommendation
    with top:
        _sentence(session, models, tuned)
    if session.asked != key:
        notice.info("Prompts or settings have changed since this tuning. Press Tune to answer for them.")
    for note in context_notes(models.pair.drafter, session.trace.lengths):
        st.info(plain(note))
    if session.left_out:
        st.warning(plain("\n\n".join(session.left_out[:5])))
    if best.k > models.ranking.observed and best.trim:
        st.warning(
            f"Only {models.ranking.observed:,} tokens are forced or were counted; the rest of k = {best.k:,} is "
            "filler. Count more text first.",
            icon=":material/warning:",
        )
    if best.speculate:
        st.button(
            f"Use k = {best.k:,} and gamma = {best.gamma} everywhere",
            key="use_recommended",
            icon=":material/check:",
            on_click=_use,
            args=(best.k, best.gamma),
        )
    st.subheader("Predicted speed over k and gamma", anchor=False)
    st.plotly_chart(tune_charts.heat_map(tuned.prediction, best), alt="Predicted speedup over k and gamma")
    st.caption(f"The ring is the point in the sentence above. {RULE}")
    _curves(session, models, workspace, tuned)
    _trees(session, models, workspace, tuned)
    tasks = _task_table(session, models)
    costly = _costly(session, models, workspace, tuned)
    _profile(tuned, models.pair.target.format_note)
    _downloads(session, models, workspace, tuned, tasks, costly)


def _sentence(session: TuneSession, models: Models, tuned: Tuned) -> None:
    text, figures = advice(tuned.recommendation)
    answer(text.replace(" = ", "\u00a0=\u00a0"), **figures)
    doubted = doubt(session.others)
    if doubted:
        st.warning(doubted, icon=":material/speed:")
    runs = _runs(session, models, tuned)
    if runs:
        st.write(plain(runs))
    st.caption(_evidence(tuned))


def _runs(session: TuneSession, models: Models, tuned: Tuned) -> str:
    """What was measured says about the recommendation."""
    measured = session.measured.get(models.ranking.digest, [])
    return against_measurement(tuned.recommendation, measured, models.ranking.vocab_size)


def _evidence(tuned: Tuned) -> str:
    seconds = tuned.seconds / max(1e-9, tuned.trace.target_seconds)
    return (
        f"Predicted from {tuned.trace.tokens:,} tokens that the target wrote on {len(tuned.trace.texts)} prompts, with "
        f"95% intervals (bootstrap over prompts and timing rounds). The whole curve took {seconds:.2f} times as long "
        "as the plain decoding that it is based on."
    )


def _shape(workspace: Workspace) -> DraftShape | None:
    """The tree that the sidebar asks for. A sampled chain of one branch is none: the walk over the trace has it."""
    shape = workspace.settings.generation.tree
    return None if shape is None or shape.is_chain else shape


def _trees(session: TuneSession, models: Models, workspace: Workspace, tuned: Tuned) -> None:
    """Acceptance of the sidebar's tree beside that of chains."""
    shape = _shape(workspace)
    if shape is None:
        return
    nodes = f"{shape.nodes} nodes" if shape.nodes else "all nodes"
    st.subheader("The tree of the sidebar", anchor=False)
    st.write(
        f"Everything else on this page is about chains. This is the tree (depth {shape.depth}, top-k {shape.branches}, "
        f"{nodes}) on the same answers: the drafter ran again along them, so its tokens per pass are exact for these "
        "answers, at a few k. How fast trees are is not predicted; compare them on the page Generate."
    )
    found = session.replayed(models, shape)
    if found is not None:
        st.html(table(_trees_frame(found, shape, tuned)))
        return
    row = st.container(horizontal=True)
    if row.button("Replay this tree", key="tune_replay", icon=":material/account_tree:"):
        cancel_button(row, "cancel_replay")
        with machine_to_itself():
            session.replay(models, shape, tuned, timed_progress("Replaying"))
        st.rerun()


def _trees_frame(found: list[Replay], shape: DraftShape, tuned: Tuned) -> pd.DataFrame:
    prediction = tuned.prediction
    # The chain that is as deep, or the longest one there is.
    gamma = max([one for one in prediction.gammas if one <= shape.depth], default=prediction.gammas[0])
    full = found[-1].tau.median
    return pd.DataFrame(
        {
            "k": [f"{one.k:,}" for one in found],
            "tree, tokens per pass": [
                f"{one.tau.median:.3f} ({one.tau.low:.2f} to {one.tau.high:.2f})" for one in found
            ],
            "of the full vocabulary's": [f"{one.tau.median / full:.1%}" for one in found],
            "rejections outside k": [f"{one.out_of_vocabulary_share:.1%}" for one in found],
            f"chain of {gamma}, tokens per pass": [
                f"{prediction.tau[prediction.at(one.k, gamma)]:.3f}" for one in found
            ],
            "of the full vocabulary's ": [f"{prediction.retained[prediction.at(one.k, gamma)]:.1%}" for one in found],
        }
    )


def _use(k: int, gamma: int) -> None:
    st.session_state["k"], st.session_state["gamma"] = k, gamma


def _curves(session: TuneSession, models: Models, workspace: Workspace, tuned: Tuned) -> None:
    prediction = tuned.prediction
    state = st.session_state
    if state.get("tune_gamma") not in prediction.gammas:
        state["tune_gamma"] = tuned.recommendation.gamma
    left, right = st.columns(2, gap="large")
    measured = session.measured.get(models.ranking.digest, [])
    with left:
        st.subheader("Speed against k", anchor=False)
        chosen = st.segmented_control("gamma", prediction.gammas, key="tune_gamma", required=True)
        gamma = chosen or tuned.recommendation.gamma
        figure = tune_charts.curve(prediction, gamma, _k(models), measured)
        st.plotly_chart(figure, alt="Predicted and measured speedup against k")
    with right:
        st.subheader("Acceptance against k", anchor=False)
        st.caption("Exact for these answers. Where a line falls to the right, trimming raises acceptance.")
        st.plotly_chart(tune_charts.acceptance(prediction, _k(models)), alt="Acceptance length against k")
    best = tuned.recommendation
    full = models.ranking.vocab_size
    points = list(
        dict.fromkeys([(best.k, best.gamma), (_k(models), best.gamma), (full, best.gamma), (_k(models), gamma)])
    )
    names = ", ".join(f"k = {k:,} at gamma {gamma}" for k, gamma in points)
    row, help = st.container(horizontal=True), f"Runs for real, interleaved: {names}"
    if row.button("Measure", key="tune_measure", icon=":material/timer:", help=help):
        cancel_button(row, "cancel_measure")
        with machine_to_itself():
            began = moment()
            session.measure(models, workspace.settings, points, timed_progress("Measuring"))
            session.others = max((others_since(began) or 0.0, session.others or 0.0))
        st.rerun()
    if measured:
        st.html(table(_measured_frame(session, models, tuned)))


def _measured_frame(session: TuneSession, models: Models, tuned: Tuned) -> pd.DataFrame:
    rows = []
    for one in session.measured.get(models.ranking.digest, []):
        if (one.k, one.gamma) == VANILLA or one.k not in tuned.prediction.ks:
            continue
        predicted = tuned.prediction.interval(one.k, one.gamma)
        rows.append(
            {
                "k": f"{one.k:,}",
                "gamma": one.gamma,
                "tokens/s": f"{one.tokens_per_second.median:.1f}",
                "measured": f"{one.speedup.median:.2f}× ({one.speedup.low:.2f} to {one.speedup.high:.2f})",
                "predicted": f"{predicted.median:.2f}× ({predicted.low:.2f} to {predicted.high:.2f})",
                "prediction off by": f"{predicted.median / one.speedup.median - 1:+.1%}",
                "tokens per pass, measured": f"{one.tau:.3f}",
                "predicted ": f"{tuned.prediction.tau[tuned.prediction.at(one.k, one.gamma)]:.3f}",
            }
        )
    return pd.DataFrame(rows)


def _task_table(session: TuneSession, models: Models) -> pd.DataFrame | None:
    runs = session.runs.get(models.ranking.digest)
    if not runs:
        return None
    full = models.ranking.vocab_size
    points = sorted((point for point in runs if point != VANILLA), key=lambda point: (point[0] == full, point))
    frame = _tasks_frame(task_table(session.prompts, runs, points), full)
    st.subheader("By task, as in the papers", anchor=False)
    st.html(table(frame))
    st.caption(TASK_WORDS)
    for paper in PUBLISHED:
        shown = ", ".join(
            f"{'full' if k == paper.full else f'{k:,}'} {tau:.2f} ({tau / paper.tau[paper.full]:.1%})"
            + (f" {paper.speedup[k]:.2f}×" if k in paper.speedup else "")
            for k, tau in paper.tau.items()
        )
        st.caption(f"{paper.source}, {paper.setting}: {shown}.")
    return frame


def _tasks_frame(table: TaskTable, full: int) -> pd.DataFrame:
    rows = []
    for row, retained in zip(table.rows, table.retained, strict=True):
        first = row[0]
        name = "vanilla" if (first.k, first.gamma) == VANILLA else "full" if first.k == full else f"k = {first.k:,}"
        shown = {"method": name if first.gamma == 0 else f"{name}, gamma {first.gamma}"}
        for task, one, share in zip(table.tasks, row, retained, strict=True):
            cell = f"{one.tokens_per_second.median:.1f} tok/s"
            if first.gamma:
                cell += f", {one.speedup.median:.2f}×, τ {one.tau:.2f} ({share:.0%})"
            shown[HEADINGS.get(task, task) or "none"] = cell
        rows.append(shown)
    return pd.DataFrame(rows)


def _costly(session: TuneSession, models: Models, workspace: Workspace, tuned: Tuned) -> pd.DataFrame | None:
    st.subheader("What your k costs", anchor=False)
    gamma = min(workspace.settings.gamma, max(session.gammas))
    found = [one for one in session.tokens(models, _k(models), gamma) if one.lost > 0][:LISTED]
    row, column = tuned.prediction.gammas.index(gamma), tuned.prediction.ks.index(_k(models))
    share = tuned.prediction.out_of_vocabulary_share[row, column]
    st.write(
        f"At k = {_k(models):,} and gamma = {gamma}, {share:.1%} of the rejections are of tokens outside k; the others "
        f"are disagreements. k keeps {tuned.prediction.retained[row, column]:.1%} of the acceptance length."
    )
    if not found:
        st.write("No token outside k would raise the acceptance of these answers.")
        return None
    ids = [one.token_id for one in found]
    texts = dict(zip(ids, readable_tokens(workspace.tokenizer, ids), strict=True))
    lost = {one.token_id: one.lost for one in found}
    st.write("These cost the most accepted tokens; click one to pin it, so that every k keeps it:")
    st.pills(
        "Costly tokens",
        ids[:PINNABLE],
        format_func=lambda token: f"{plain(texts[token])} −{lost[token]:.1f}",
        key="pin_costly",
        on_change=_pin_costly,
        label_visibility="collapsed",
    )
    frame = pd.DataFrame(
        {
            "token": [texts[one.token_id] for one in found],
            "id": ids,
            "accepted tokens lost": [round(one.lost, 2) for one in found],
            "times": [one.count for one in found],
            "by task": [
                ", ".join(f"{HEADINGS.get(task, task) or 'none'} {value:.1f}" for task, value in one.by_task if value)
                for one in found
            ],
            "where": ["".join(readable_tokens(workspace.tokenizer, one.contexts[0])) for one in found],
        }
    )
    st.dataframe(frame, hide_index=True)
    return frame


def _k(models: Models) -> int:
    """k of a drafter with a head, which all that are tuned have."""
    assert models.k is not None
    return models.k


def _pin_costly() -> None:
    token = st.session_state.pop("pin_costly", None)
    if token is not None:
        pin([token])


def _profile(tuned: Tuned, note: str) -> None:
    profile = tuned.profile
    with st.expander("What the parts of a cycle cost here", icon=":material/timer:"):
        left, right = st.columns(2, gap="large")
        left.plotly_chart(tune_charts.target_pass(profile), alt="Time of the target's pass by its tokens")
        right.plotly_chart(tune_charts.head_by_k(profile), alt="Time of the drafter's head by k")
        contexts = " and ".join(f"{context:,}" for context in profile.contexts)
        st.caption(
            f"{profile.dtype}, {profile.machine.threads} threads of {profile.machine.cpu}, after {contexts} tokens of "
            f"text; {profile.rounds} interleaved rounds, vanilla passes ±{profile.noise():.0%} between them. Timed at "
            f"{_clock(profile.measured_at)} and kept for a day, for tunings of the same models here."
        )
        if note:
            st.caption(plain(note))


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def _downloads(
    session: TuneSession,
    models: Models,
    workspace: Workspace,
    tuned: Tuned,
    tasks: pd.DataFrame | None,
    costly: pd.DataFrame | None,
) -> None:
    row = st.container(horizontal=True)
    download(row, "Curve as CSV", csv(curve_frame(tuned.prediction)), "tune.csv", "tune_csv")
    if costly is not None:
        download(row, "Costly tokens as CSV", csv(costly), "costly.csv", "costly_csv")
    page = _report(session, models, workspace, tuned, tasks, costly)
    download(row, "Report for the team (HTML)", page, "tune.html", "tune_html", ":material/description:")


def _report(
    session: TuneSession,
    models: Models,
    workspace: Workspace,
    tuned: Tuned,
    tasks: pd.DataFrame | None,
    costly: pd.DataFrame | None,
) -> bytes:
    best, profile, k = tuned.recommendation, tuned.profile, _k(models)
    # The ranking may have changed since; everything else is as it was.
    settings = replace(
        session.settings, **{name: getattr(workspace.settings, name) for name in (*RANKING_SETTINGS, "k")}
    )
    how = "greedy" if settings.temperature == 0 else f"temperature {settings.temperature:g}, seed {settings.seed}"
    measured = session.measured.get(models.ranking.digest, [])
    facts = {
        "date": _clock(session.began),
        "models": models.pair.name,
        "ranking": models.ranking.name,
        "evidence": f"{tuned.trace.tokens:,} tokens on {len(session.prompts)} prompts",
        "decoding": f"{how}, at most {settings.max_new_tokens:,} tokens",
        "machine": f"{profile.machine.cpu}, {profile.machine.threads} threads, {profile.dtype}, "
        f"timed {_clock(profile.measured_at)}",
        "versions": f"VocabTrim {__version__}, torch {profile.machine.torch}",
    }
    prediction = tuned.prediction
    sections = [
        Section("Predicted speed over k and gamma", RULE, {"": tune_charts.heat_map(prediction, best)}),
        Section(
            "Against k",
            f"The dotted line is k = {best.k:,}. Speed at gamma = {best.gamma}; the band is the 95% interval.",
            {
                "Speed": tune_charts.curve(prediction, best.gamma, best.k, measured),
                "Acceptance": tune_charts.acceptance(prediction, best.k),
            },
        ),
    ]
    if measured:
        sections.append(Section("Predicted and measured", "", table=_measured_frame(session, models, tuned)))
    if tasks is not None:
        sections.append(Section("By task", "Measured.", table=tasks))
    if costly is not None:
        text = f"Accepted tokens lost at k = {k:,} and where, at most {REPORTED}. The recommended k is {best.k:,}."
        sections.append(Section(f"What k = {k:,} costs", text, table=costly.head(REPORTED)))
    parts = {"Target pass": tune_charts.target_pass(profile), "Drafter's head": tune_charts.head_by_k(profile)}
    sections.append(Section("What the parts of a cycle cost", "Medians with the lowest and the highest.", parts))
    again = command(settings, session.prompts, prediction.gammas, sorted({best.k, k, models.ranking.vocab_size}))
    link = f"{(st.context.url or '').partition('?')[0]}?{urlencode(settings.to_query())}"
    also = " ".join(filter(None, [doubt(session.others), _runs(session, models, tuned), _evidence(tuned)]))
    return report(in_words(best), also, facts, sections, link, again)


main()
