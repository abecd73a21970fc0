"""Prompts to distil drafters on: seven kinds of task, built from templates, topics and documents that are at hand.

    python data/drafters/training_prompts.py OUT.jsonl [--n 600] [--seed 0] [--tasks rag,summarisation]
        [--documents DOCUMENTS.jsonl]

Short prompts are filled-in templates of our own. Long ones quote documents: the running Python's language reference
(`pydoc_data.topics`), docstrings and functions of its standard library, and `data/corpora/prose.jsonl`. With
`--documents`, three of four documents and German texts are from that file (`documents.py` writes one).
The result is the same for the same options and Python version. It has no prompt twice, and none of `data/tasks` or
`data/prompts.jsonl`, which measure the drafters (tests/drafters/test_training_prompts.py).
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import random
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics as REFERENCE  # noqa: N812

PROSE = Path(__file__).parent.parent / "corpora" / "prose.jsonl"
# About 4.2 characters a token in this text: 200 to 900 tokens.
SHORTEST, LONGEST = 850, 3700
SHORTEST_PASSAGE = 250
QUOTED_SHARE = 0.75
TRIES = 200


def listed(text: str) -> list[str]:
    """The items of a text that are set apart by semicolons or line ends."""
    return [item.strip() for item in text.replace("\n", ";").split(";") if item.strip()]


TOPICS = listed("""
    growing tomatoes on a balcony; learning the violin as an adult; the history of paper; public libraries
    night trains; beekeeping in cities; the water cycle; repairing old furniture; school uniforms; working from home
    winter swimming; the invention of the bicycle; recycling glass; coral reefs; keeping a diary; volcanoes
    street markets; chess openings; saving for a first flat; the Silk Road; sleep and memory
    cooking for twelve guests; electric buses; lighthouses; training a young dog; wind turbines; writing a good CV
    migrating birds; the printing press; knitting a scarf; tea ceremonies; long-distance running; black holes
    city parks; the Roman roads; making sourdough bread; antibiotics; packing for a week in the mountains
    earthquakes; choosing a laptop; the moon's phases; community theatre; bread ovens
    machine learning for beginners; small talk with strangers; the Great Fire of London; solar panels
    soil and compost; learning vocabulary in a foreign language; giving feedback to a colleague; tides; origami
    photography at night; stage fright; the Vikings at sea; healthy packed lunches; password safety
    the opening of the Suez Canal; jazz; moving to a small village; bridges; desert animals; the human heart
    a family budget; car sharing; rainbows; running a meeting on time; medieval castles; plastic in the sea
    teaching children to cook; balance exercises; the theory of evolution; vaccines; the Olympic Games in antiquity
    houseplants; glaciers; board games for four
""")

STYLES = (
    "", "", "", " Keep it under 120 words.", " Use plain language.", " Give your answer as a numbered list.",
    " Use a friendly tone.", " Be brief and precise.", " Use at least two examples.", " Write for a beginner.",
    " Use short paragraphs with headings.", " Write for a reader who is in a hurry.", " End with one question for me.",
    " Explain your reasoning.", " Avoid jargon.", " Answer in the style of a newspaper column.", " Use bullet points.",
)  # fmt: skip

CONVERSATION = (
    "Write an introduction to {topic} for a local magazine.",
    "I am giving a five-minute talk about {topic}. Draft it for me.",
    "What are the most common mistakes people make when it comes to {topic}?",
    "Write a dialogue between two friends who disagree about {topic}.",
    "Give me ten ideas for a blog about {topic}.",
    "Pretend you are a museum guide and tell visitors about {topic}.",
    "List the advantages and disadvantages that one should know about {topic}.",
    "Write a short poem about {topic}.",
    "Write an e-mail that invites my colleagues to a lunch talk on {topic}.",
    "How would you explain {topic} to someone who has never heard of it?",
    "You are an experienced teacher. Plan a 45-minute lesson about {topic}.",
    "Compare {topic} with {other}: what do they have in common, and where do they differ?",
    "Write the opening paragraph of a story in which {topic} plays a part.",
    "Make a quiz of five questions, with answers, about {topic}.",
    "I feel a bit lost with the subject of {topic}. Where should I start?",
    "Write a cheerful product description for a book about {topic}.",
    "Make a table with three columns (aspect, fact, why it matters) about {topic}.",
    "Act as an interviewer and ask me six questions about {topic}, from easy to hard.",
    "Suggest a week-long plan for someone who wants to find out more about {topic}.",
    "Write a letter to the editor about {topic}, in favour of more attention to it.",
    "Which three facts about {topic} surprise most people?",
    "Tell me a bedtime story that has something to do with {topic}.",
    "Write a formal complaint, and then a polite reply to it, that both concern {topic}.",
    "Someone claims that nobody needs to know anything about {topic}. Answer them.",
)

QA = (
    "What is the capital of {country}, and what is it known for?",
    "Which languages are spoken in {country}?",
    "Which countries share a border with {country}?",
    "What is the difference between {pair}?",
    "How does a {device} work?",
    "Who invented the {device}, and when?",
    "What is {concept}?",
    "Why is {concept} important?",
    "Define {concept} in one sentence.",
    "Give an example of {concept} from everyday life.",
    "What are the main causes of {event}?",
    "When did {event} happen, and what changed because of it?",
    "Name three facts about {event}.",
    "What does {concept} have to do with {other_concept}?",
    "What is the currency of {country}?",
    "Which is the longest river in {country}?",
    "Is it true that {pair} are the same thing?",
    "What parts does a {device} have?",
    "How large is {country} compared with {other_country}?",
)
COUNTRIES = listed("""
    Portugal; Norway; Kenya; Peru; Japan; Egypt; Canada; Vietnam; Poland; Chile; Morocco; Greece; Finland; Thailand
    Mexico; Ireland; Turkey; Ghana; Nepal; Austria; Cuba; Iceland; Hungary; Indonesia; Ethiopia; Uruguay; Jordan
    Estonia; Bolivia; Sweden; Malaysia; Tanzania; Croatia; Argentina; Mongolia; Belgium; Algeria; New Zealand
    Romania; Colombia
""")
PAIRS = listed("""
    weather and climate; a lake and a sea; speed and velocity; a simile and a metaphor; mass and weight
    a frog and a toad; a novel and a novella; butter and margarine; a comet and an asteroid; a moral and a fable
    baking soda and baking powder; a symphony and a concerto; heat and temperature; a debit card and a credit card
    an alligator and a crocodile; stalactites and stalagmites; a moth and a butterfly; a democracy and a republic
    an acid and a base; a synonym and an antonym; the Internet and the World Wide Web
    fruit and vegetables in botany; inflation and deflation; an artery and a vein; a hurricane and a tornado
    a bug and an error in software; a hare and a rabbit; a civil war and a revolution; jam and marmalade
    DNA and RNA
""")
DEVICES = listed("""
    telescope; steam engine; refrigerator; compass; microwave oven; telephone; sewing machine; camera; lightning rod
    barometer; hearing aid; pendulum clock; light bulb; typewriter; zip fastener; elevator; parachute; microscope
    radio; submarine; battery; windmill; ballpoint pen; vacuum flask; hot-air balloon; stethoscope; bicycle pump
    loom; piano
""")
CONCEPTS = listed("""
    gravity; photosynthesis; supply and demand; friction; osmosis; the placebo effect; natural selection; irony
    compound interest; the separation of powers; an ecosystem; evaporation; a food chain; opportunity cost; erosion
    encryption; plate tectonics; the greenhouse effect; a prime number; perspective in painting; latitude
    a catalyst; biodiversity; rhythm; the scientific method; a hypothesis; the rule of law; buoyancy
    the Doppler effect; metabolism; refraction; symbiosis; statistical significance; a constitution; magnetism
    the water table; inertia; an alloy; a black box; open source
""")
EVENTS = listed("""
    the French Revolution; the fall of the Berlin Wall; the Black Death; the first landing on the Moon
    the Great Depression; the Industrial Revolution; the sinking of the Titanic
    the eruption of Vesuvius in Pompeii's time; the Irish potato famine; the building of the Panama Canal
    the First World War; the California gold rush; the discovery of penicillin; the end of apartheid
    the partition of India; the Boston Tea Party; the Congress of Vienna; the fall of Constantinople
    the Chernobyl accident; the dust storms of the 1930s; the invention of writing; the first flight by aeroplane
    the abolition of slavery in Britain; the Meiji Restoration
""")

MATH = (
    "{name} buys {a} {things} for {b} dollars each and pays with a {note}-dollar note. How much change does "
    "{name} get?",
    "A box holds {a} {things}. A shop orders {b} boxes and sells {c} {things} on the first day. How many are left?",
    "{name} has {a} {things} and {other} has {b} times as many. How many do they have together?",
    "{name} cycles {a} km every day from Monday to Friday and {b} km on each day of the weekend. How far is "
    "that in a week?",
    "There are {ab} {things}, shared equally among {a} children. How many does each child get?",
    "{name} reads {a} pages on the first day and {b} pages more on every following day. How many pages are "
    "read after 4 days?",
    "A bus leaves with {a0} passengers. At the first stop {b} get off and {c} get on, at the second {a} get "
    "on. How many are on board?",
    "{name} earns {a} dollars an hour and works {b} hours a day. How much does {name} earn in {c} days?",
    "A garden is {ab} metres long and {a} metres wide. {name} puts a fence around it at {b} dollars a metre. "
    "What does it cost?",
    "{name} saves {a} dollars a week and has {b0} dollars already. After how many weeks are there at least "
    "{note} dollars?",
    "A jacket costs {a0} dollars and is reduced by {percent} percent. What is the new price?",
    "{percent} percent of the {b0} pupils of a school play an instrument. How many do not?",
    "A car uses {b} litres of petrol for 100 km. How much does it need for {a0} km, and what does that cost "
    "at {c} dollars a litre?",
    "{name} is {a} years old. {other} is {b} years older. In how many years will their ages add up to {note}?",
    "A recipe for 4 people needs {a0} grams of flour. {name} cooks for {b} people. How much flour is needed?",
    "{name} bakes {a0} rolls, keeps {c} for breakfast and packs the rest into bags of {b}. How many full bags "
    "are there?",
    "Three friends, {name} one of them, share a bill of {b0} dollars and add a tip of {percent} percent. What "
    "does each pay?",
    "A train runs at {a0} km an hour for {b} hours and then at half that speed for {c} hours. How far does it go?",
)
MATH_STYLES = ("", "", " Show your work.", " Think step by step.", " Give the equation and the result.", " Explain it.")
NAMES = listed("""
    Amira; Bruno; Celia; Dario; Edith; Farid; Greta; Hugo; Ines; Jonas; Kemal; Leni; Mateo; Nadia; Oscar; Priya
    Rosa; Samuel
""")
THINGS = listed("""
    apples; pencils; stickers; candles; postcards; marbles; tickets; oranges; buttons; notebooks; eggs; tulips; cups
""")

CODE = (
    "Write a {language} function that {task}.",
    "Write a {language} function that {task}, with a comment above each step.",
    "Write a {language} program that {task} and prints the result for an example.",
    "How can I write code in {language} that {task}?",
    "In Python, write a function that {task}. Then write three assert statements that test it.",
    "Write a Python class with a method that {task}, and show how it is used.",
    "Give me two ways in Python to write a function that {task}, and compare their running time.",
    "A beginner asks how to write Python code that {task}. Show the code and explain every line.",
    "Write a Python function with type hints and a docstring that {task}. Raise ValueError where the input "
    "makes no sense.",
)
LANGUAGES = ("Python", "Python", "Python", "Python", "JavaScript", "Java", "C", "Go", "Rust", "Bash")
JOBS = listed("""
    counts the vowels in a string; checks whether a word is a palindrome; merges two sorted lists
    sums the digits of a number; finds the second largest value in a list
    removes duplicates from a list but keeps the order; converts Celsius to Fahrenheit
    reads a CSV file and sums one column; reverses the words of a sentence; checks whether a year is a leap year
    computes the factorial of a number; finds all prime numbers below n; sorts a list of pairs by the second item
    counts how often each word occurs in a text; rotates a list by k places; flattens a nested list
    checks whether two strings are anagrams; finds the longest word in a sentence; converts a number to binary text
    converts Roman numerals to integers; computes the greatest common divisor of two numbers
    validates an e-mail address; finds the intersection of two lists; transposes a matrix; multiplies two matrices
    does a binary search in a sorted list; implements bubble sort; implements a stack
    implements a queue with a limit on its size; inserts a value into a linked list
    finds the depth of a binary tree; walks a directory and lists the largest files
    parses a date in the form 2024-03-17; generates a random password of n characters
    encrypts a text with a Caesar shift; splits a list into chunks of n items
    finds the missing number in a list from 1 to n; checks whether brackets are balanced
    computes the moving average of a list; groups words by their first letter; calculates the median of a list
    retries a call three times before it gives up; caches the results of a slow function
    measures how long another function takes; turns a dictionary's keys and values around; draws a triangle of stars
    simulates throwing two dice a thousand times; counts the days between two dates
    replaces every tab in a file by four spaces; finds the most frequent item of a list
    capitalises every word of a title; computes compound interest; checks a Sudoku row for mistakes
    prints the multiplication table up to ten; finds a path through a small maze; compresses a string by run lengths
    computes the nth row of Pascal's triangle
""")
CODE_READING = (
    "Explain what this Python function does, step by step.\n\n```python\n{source}\n```",
    "Review this Python code. What would you improve?\n\n```python\n{source}\n```",
    "Write a docstring for this Python function.\n\n```python\n{bare}\n```",
    "Write unit tests for the following function.\n\n```python\n{source}\n```",
    "Rewrite this function with clearer names and type hints.\n\n```python\n{bare}\n```",
    "Translate this Python function into JavaScript.\n\n```python\n{bare}\n```",
    "Complete the body of this Python function.\n\n```python\n{head}\n```",
    "Complete the function. Answer with the code only.\n\n{head}",
    "{head}",
    "Which errors can this function raise, and when?\n\n```python\n{source}\n```",
)

SUMMARY = (
    "Summarise the following text.\n\n{text}", "Summarize: {text}", "{text}\n\nSummarise this in three sentences.",
    "Give me the key points of this text as a list.\n\n{text}", "{text}\n\nTL;DR:",
    "Write a one-paragraph summary for someone who will not read the whole text.\n\n{text}",
    "What is this text about? Answer in two or three sentences.\n\n{text}",
    "Shorten the following text to about a quarter of its length.\n\n{text}",
    "Read the text and list the five most important facts in it.\n\n{text}",
    "Write a headline and a summary of at most 80 words.\n\n{text}",
    "{text}\n\nSum up the text above in simple words.",
    "Please condense this into a short briefing with a heading.\n\n{text}",
    "Here is a document:\n\n{text}\n\nWrite an abstract of it.",
)  # fmt: skip

RAG = (
    "{passages}\n\nQuestion: {question}\nAnswer with the help of the passages above.",
    "Use the following passages to answer the question.\n\n{passages}\n\nQuestion: {question}",
    "Context:\n{passages}\n\nAnswer this question from the context: {question}",
    "{question}\n\nReference material:\n{passages}",
    "You are given some search results.\n\n{passages}\n\nAnswer the question in your own words: {question}",
    "{passages}\n\n{question} If the passages do not say, say so.",
    "Documents:\n{passages}\n\nBased only on the documents, {lower_question}",
    "Answer the question and name the passage that you used.\n\n{passages}\n\nQuestion: {question}",
    "Background:\n{passages}\n\nQ: {question}\nA:",
    "I found these notes:\n\n{passages}\n\nNow tell me: {lower_question}",
    "Passages:\n{passages}\n\nGive a short answer and then the evidence. {question}",
    "{passages}\n\nWith the text above in mind: {lower_question}",
)
RAG_QUESTIONS = (
    "What do the passages say about {word}?", "What role does {word} play here?", "Why is {word} mentioned?",
    "Which facts are given about {word}?", "What can be learned about {word} from the text?",
    "How is {word} described?", "What does the text tell a reader who wants to know about {word}?",
)  # fmt: skip
NOUN_ENDINGS = (
    "tion", "ment", "ity", "ture", "ism", "ance", "ence", "ness", "ship", "logy", "sion", "cracy", "dom", "dustry",
)  # fmt: skip

# Sentences are put together from an opening, a main clause and an ending.
SENTENCES: dict[str, tuple[list[str], list[str], list[str]]] = {
    "German": (
        ["Gestern Abend", "Am Montag", "Nach dem langen Winter", "Trotz des Regens", "In der Altstadt",
         "Seit drei Jahren", "Heute Morgen", "Im vergangenen Monat", "Zum ersten Mal", "Auf Wunsch vieler Bürger"],
        ["eröffnete die Stadt eine neue Bibliothek", "warten die Reisenden auf ihren Zug",
         "diskutierte der Gemeinderat über den Haushalt", "verkauft der Bäcker auch warme Suppe",
         "suchte die Polizei nach einem gestohlenen Boot", "arbeiten die Forscher an einem neuen Verfahren",
         "spielte das Orchester vor vollem Haus", "beschwerten sich die Anwohner über den Lärm",
         "steigen die Preise für Strom und Gas", "half meine Schwester den Nachbarn beim Umzug",
         "kündigte das Unternehmen neue Stellen an", "fanden Kinder eine alte Münze am Fluss"],
        [", obwohl das Geld knapp ist.", ", weil die Brücke gesperrt war.", ".", ", wie eine Sprecherin mitteilte.",
         " und viele Gäste kamen.",
         ", bevor die Ferien begannen.", ", ohne lange zu zögern.", ", was alle überraschte."],
    ),
    "French": (
        ["Hier soir,", "Depuis plusieurs années,", "À la fin du mois,", "Malgré la pluie,", "Dans ce petit village,",
         "Ce matin,", "Pour la première fois,", "Selon le journal,", "Pendant les vacances,"],
        ["la mairie a inauguré une nouvelle école", "les voisins organisent un repas dans la rue",
         "mon frère répare de vieux vélos", "les chercheurs ont présenté leurs résultats",
         "le musée reste ouvert jusqu'à minuit", "les agriculteurs ont demandé de l'aide",
         "la directrice a répondu à toutes les questions", "le train est arrivé avec une heure de retard",
         "les enfants ont planté des arbres près du lac", "l'entreprise a changé de nom"],
        [" parce que tout le monde le souhaitait.", ".", ", sans que personne ne s'en aperçoive.",
         " et le public a beaucoup applaudi.", ", malgré un budget très limité.", ", ce qui a surpris les habitants.",
         ", comme chaque année à cette période."],
    ),
    "Spanish": (
        ["Ayer por la tarde,", "Desde hace meses,", "A pesar del frío,", "En el centro de la ciudad,",
         "El mes pasado,", "Según los vecinos,", "Durante el verano,", "Por primera vez,"],
        ["el ayuntamiento abrió un nuevo parque", "los estudiantes prepararon una obra de teatro",
         "mi abuela hornea pan para toda la familia", "los médicos recomiendan caminar media hora al día",
         "el barco llegó al puerto con varias horas de retraso", "la profesora explica las reglas con paciencia",
         "los pescadores encontraron una botella con una carta", "la empresa construyó una planta de energía solar"],
        [".", " porque muchas personas lo pidieron.", ", aunque nadie lo esperaba.", " y todos quedaron contentos.",
         ", como informó la radio local.", ", sin gastar mucho dinero."],
    ),
    "Italian": (
        ["Ieri mattina", "Da qualche anno", "Nonostante il caldo,", "Alla fine della settimana",
         "Nel quartiere vecchio", "Dopo la riunione"],
        ["il sindaco ha aperto una nuova biblioteca", "i pescatori vendono il pesce sulla spiaggia",
         "la scuola ha ricevuto dieci computer", "mio zio coltiva pomodori sul balcone",
         "gli studenti hanno visitato un vecchio mulino", "il treno per il mare era pieno di turisti"],
        [".", ", perché tutti lo volevano.", ", anche se costa molto.", " e la gente ne parla ancora.",
         ", come ogni anno."],
    ),
    "English": (
        ["Last night", "For several years", "Despite the heavy rain,", "In the old harbour", "On Thursday afternoon",
         "To everyone's surprise,", "According to the report,", "During the school holidays,"],
        ["the council closed the main road", "volunteers painted the waiting room",
         "two engineers tested the new bridge",
         "the baker sold more than four hundred loaves", "my cousin taught us how to mend a net",
         "the airline cancelled every flight to the islands", "a group of pupils measured the quality of the water",
         "the hospital opened a second entrance", "the owner of the cinema offered free tickets"],
        [".", " because the money had finally arrived.", ", although nobody had asked for it.",
         " and called it a success.", ", as the mayor had promised.",
         " without telling the press.", ", which made the evening news."],
    ),
}  # fmt: skip
INTO_ENGLISH = (
    "Translate {source} to English: {text}", "Translate into English: {text}",
    "What does this {source} text mean in English?\n\n{text}", "{text}\n\nTranslate this into natural English.",
    "Please give me the English version of the following {source} passage.\n{text}",
    "Translate from {source} into English, sentence by sentence: {text}", "{source}: {text}\nEnglish:",
    "Give two English translations of this {source} text, one literal and one free: {text}",
)  # fmt: skip
OUT_OF_ENGLISH = (
    "Translate into {target}: {text}", "Translate English to {target}: {text}",
    "How do you say this in {target}? {text}",
    "{text}\n\nTranslate the text above into {target}.", "English: {text}\n{target}:",
)  # fmt: skip


# ---- documents ------------------------------------------------------------------------------------------------------


@functools.cache
def prose() -> list[tuple[str, str]]:
    """(source, text) of the sample corpus of prose."""
    with PROSE.open(encoding="utf-8") as lines:
        return [(record["source"], record["text"].strip()) for record in map(json.loads, lines)]


@functools.cache
def library() -> tuple[list[str], list[tuple[str, str, str]]]:
    """Module docstrings of the standard library of SHORTEST characters and more, and its functions of 5 to 35 lines
    with a docstring, as (source, source without the docstring, signature and docstring)."""
    docstrings, functions = [], []
    folder = Path(ast.__file__).parent
    for path in sorted([*folder.glob("*.py"), *folder.glob("[a-z]*/*.py")]):
        if any(part in ("test", "tests", "site-packages", "lib2to3", "idlelib") for part in path.parts):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        docstring = ast.get_docstring(tree)
        if docstring and len(docstring) >= SHORTEST:
            docstrings.append(docstring)
        lines = text.splitlines()
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and 4 < node.end_lineno - node.lineno < 35 and ast.get_docstring(node):
                end_of_docstring = node.body[0].end_lineno
                whole = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                head = "\n".join(lines[node.lineno - 1 : end_of_docstring])
                if head == whole:
                    continue
                signature = lines[node.lineno - 1 : node.body[0].lineno - 1]
                bare = "\n".join([*signature, *lines[end_of_docstring : node.end_lineno]])
                functions.append((whole, bare, head))
    return docstrings, functions


def cut(text: str, characters: int, rng: random.Random) -> str:
    """At most `characters` of the text, from the start of one of its paragraphs to the end of one."""
    paragraphs = [part.strip("\n") for part in text.split("\n\n") if part.strip()]
    start = rng.randrange(len(paragraphs))
    # Not so late that little is left.
    while start and sum(map(len, paragraphs[start:])) < characters:
        start -= 1
    end, size = start, 0
    while end < len(paragraphs) and (end == start or size + len(paragraphs[end]) <= characters):
        size += len(paragraphs[end]) + 2
        end += 1
    taken = "\n\n".join(paragraphs[start:end])
    if len(taken) > characters:
        taken = taken[:characters].rsplit(" ", 1)[0]
    return textwrap.dedent(taken)


@dataclass(frozen=True)
class Quotable:
    """Texts from elsewhere: English documents of any length, and short German texts."""

    english: Sequence[str] = ()
    german: Sequence[str] = ()


NOTHING = Quotable()


def read_documents(path: Path) -> Quotable:
    with path.open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    english, german = (
        [record["text"] for record in records if record["language"] == language] for language in ("English", "German")
    )
    return Quotable(english, german)


def document(rng: random.Random, quotable: Quotable = NOTHING) -> str:
    """A document of SHORTEST to LONGEST characters."""
    elsewhere = bool(quotable.english) and rng.random() < QUOTED_SHARE
    while True:
        characters, kind = rng.randint(SHORTEST, LONGEST), rng.random()
        if elsewhere:
            text = ""
            while len(text) < characters:
                text += rng.choice(quotable.english) + "\n\n"
            taken = cut(text, characters, rng)
        elif kind < 0.6:
            texts = prose()
            at = rng.randrange(len(texts))
            source = texts[at][0]
            joined = "\n\n".join(text for origin, text in texts[at : at + 3] if origin == source)
            taken = cut(joined, characters, rng)
        elif kind < 0.85:
            taken = cut(REFERENCE[rng.choice(sorted(REFERENCE))], characters, rng)
        else:
            taken = cut(rng.choice(library()[0]), characters, rng)
        if len(taken) >= SHORTEST:
            return taken


# ---- prompts --------------------------------------------------------------------------------------------------------


def conversation(rng: random.Random, quotable: Quotable) -> str:
    topic, other = rng.sample(TOPICS, 2)
    return rng.choice(CONVERSATION).format(topic=topic, other=other) + rng.choice(STYLES)


def translation(rng: random.Random, quotable: Quotable) -> str:
    # Half of them from German, as in WMT's test sets.
    language = rng.choice(["German"] * 4 + ["French", "French", "Spanish", "Spanish", "Italian", "English", "English"])
    if language == "German" and quotable.german and rng.random() < QUOTED_SHARE:
        return rng.choice(INTO_ENGLISH).format(source=language, text=rng.choice(quotable.german))
    openings, clauses, endings = SENTENCES[language]
    count = rng.choice([1, 1, 2, 2, 3])
    parts = zip(rng.sample(openings, count), rng.sample(clauses, count), rng.sample(endings, count), strict=True)
    text = " ".join(f"{opening} {clause}{ending}" for opening, clause, ending in parts)
    if language == "English":
        target = rng.choice([known for known in SENTENCES if known != "English"])
        return rng.choice(OUT_OF_ENGLISH).format(target=target, text=text)
    return rng.choice(INTO_ENGLISH).format(source=language, text=text)


def qa(rng: random.Random, quotable: Quotable) -> str:
    concept, other_concept = rng.sample(CONCEPTS, 2)
    country, other_country = rng.sample(COUNTRIES, 2)
    question = rng.choice(QA).format(
        country=country, other_country=other_country, concept=concept, other_concept=other_concept,
        pair=rng.choice(PAIRS), device=rng.choice(DEVICES), event=rng.choice(EVENTS),
    )  # fmt: skip
    return question + rng.choice(("", "", "", " Answer briefly.", " Answer in one sentence.", " Explain your answer."))


def math(rng: random.Random, quotable: Quotable) -> str:
    name, other = rng.sample(NAMES, 2)
    a, b, c = rng.randint(6, 24), rng.randint(2, 9), rng.randint(2, 12)
    question = rng.choice(MATH).format(
        name=name, other=other, things=rng.choice(THINGS), a=a, b=b, c=c, ab=a * b, a0=10 * a, b0=100 * b,
        note=rng.choice([n for n in (50, 100, 200, 500) if n > a * b]), percent=rng.choice((5, 10, 15, 20, 25, 40)),
    )  # fmt: skip
    return question + rng.choice(MATH_STYLES)


def code(rng: random.Random, quotable: Quotable) -> str:
    if rng.random() < 0.6:
        return rng.choice(CODE).format(language=rng.choice(LANGUAGES), task=rng.choice(JOBS))
    source, bare, head = rng.choice(library()[1])
    return rng.choice(CODE_READING).format(source=source, bare=bare, head=head)


def summarisation(rng: random.Random, quotable: Quotable) -> str:
    return rng.choice(SUMMARY).format(text=document(rng, quotable))


def rag(rng: random.Random, quotable: Quotable) -> str:
    while True:
        count = rng.randint(2, 4)
        passages = [cut(document(rng, quotable), rng.randint(350, 900), rng) for _ in range(count)]
        if min(map(len, passages)) < SHORTEST_PASSAGE:
            continue
        # Ask for something, by its ending a noun, that is in one of the passages and not in the others.
        words = [{word.strip(".,;:()\"'") for word in passage.split()} for passage in passages]
        chosen = rng.randrange(count)
        others = set().union(*(words[i] for i in range(count) if i != chosen))
        candidates = sorted(word for word in words[chosen] - others if word.isalpha() and word.endswith(NOUN_ENDINGS))
        if candidates:
            break
    question = rng.choice(RAG_QUESTIONS).format(word=rng.choice(candidates))
    mark = rng.choice(("[{}] ", "Passage {}: ", "{}. ", "Document {}\n"))
    numbered = "\n\n".join(mark.format(i) + passage for i, passage in enumerate(passages, start=1))
    lower_question = question[0].lower() + question[1:]
    return rng.choice(RAG).format(passages=numbered, question=question, lower_question=lower_question)


WRITERS: dict[str, Callable[[random.Random, Quotable], str]] = {
    "translation": translation, "conversation": conversation, "rag": rag, "math": math, "qa": qa,
    "summarisation": summarisation, "code": code,
}  # fmt: skip


def training_prompts(
    n: int, seed: int = 0, tasks: Sequence[str] = tuple(WRITERS), quotable: Quotable = NOTHING
) -> list[dict[str, str]]:
    """`n` prompts, all different, as {"task", "prompt"}: the tasks in turn, with `quotable` texts, if there
    are any. ValueError where the templates do not give as many."""
    rng = random.Random(seed)
    prompts: dict[str, str] = {}
    for i in range(n):
        task = tasks[i % len(tasks)]
        for _ in range(TRIES):
            prompt = WRITERS[task](rng, quotable)
            if prompt not in prompts:
                prompts[prompt] = task
                break
        else:
            raise ValueError(f"the templates give no more than {i} prompts (no new one of task {task})")
    return [{"task": task, "prompt": prompt} for prompt, task in prompts.items()]


def main(arguments: argparse.Namespace) -> None:
    with arguments.out.open("w", encoding="utf-8", newline="\n") as out:
        quotable = read_documents(arguments.documents) if arguments.documents else NOTHING
        for record in training_prompts(arguments.n, arguments.seed, arguments.tasks.split(","), quotable):
            out.write(json.dumps(record, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--n", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", default=",".join(WRITERS))
    parser.add_argument("--documents", type=Path)
    main(parser.parse_args())
