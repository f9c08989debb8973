"""Questions about InferFlux and their answers: each fact with the topics people ask it by."""

from __future__ import annotations

from typing import Final, NamedTuple


class Fact(NamedTuple):
    """An answer, and the questions it answers."""

    answer: str
    questions: tuple[str, ...]


def _about(topic: str) -> tuple[str, ...]:
    return (
        f"What is {topic}?",
        f"What does {topic} do?",
        f"Explain {topic}.",
        f"Tell me about {topic}.",
        f"What is {topic} for?",
        f"Describe {topic} briefly.",
    )


def _part(part: str) -> tuple[str, ...]:
    return (
        *_about(f"the {part}"),
        *_about(f"the InferFlux {part}"),
        f"What is the job of the {part} in InferFlux?",
        f"What does the {part} do in InferFlux?",
    )


def _why(tool: str) -> tuple[str, ...]:
    return (
        f"Why does InferFlux use {tool}?",
        f"What does InferFlux use {tool} for?",
        f"What is {tool} for in InferFlux?",
        f"How does InferFlux use {tool}?",
        f"What is the role of {tool} in InferFlux?",
        f"Tell me what {tool} does in InferFlux.",
        f"What does {tool} do for InferFlux?",
        f"Where does InferFlux use {tool}?",
    )


FACTS: Final = (
    Fact(
        "InferFlux is a suite of small Python services that serve language models on llama.cpp.",
        (*_about("InferFlux"), "What kind of software is InferFlux?", "Give me a summary of InferFlux."),
    ),
    Fact(
        "InferFlux has four kinds of services: the gateway, the scheduler, the workers and the policy "
        "service.",
        (
            "Which services does InferFlux have?",
            "What are the parts of InferFlux?",
            "Name the services of InferFlux.",
            "List the parts of InferFlux.",
            "What is InferFlux made of?",
            "Which parts make up InferFlux?",
            "How many kinds of services does InferFlux have?",
            "What services belong to InferFlux?",
        ),
    ),
    Fact(
        "The gateway takes requests over gRPC or HTTP, makes tokens of the text and relays the answer to "
        "the client.",
        _part("gateway"),
    ),
    Fact(
        "The scheduler keeps the priority queue and decides which worker runs a request and when.",
        _part("scheduler"),
    ),
    Fact(
        "A worker runs llama.cpp, batches many requests together and streams the tokens back.",
        (*_part("worker"), *_about("a worker"), "What do the workers of InferFlux do?"),
    ),
    Fact(
        "The policy service checks API keys, roles, limits and guardrails before a request may run.",
        (*_part("policy service"), "Who checks the API keys in InferFlux?", "Where are rate limits checked?"),
    ),
    Fact("InferFlux sends every message between its services over NATS.", _why("NATS")),
    Fact("InferFlux uses gRPC for calls from clients and for calls to the policy service.", _why("gRPC")),
    Fact("InferFlux keeps the policy store and the index of cached prefixes in Redis.", _why("Redis")),
    Fact(
        "InferFlux uses llama.cpp as the engine that computes the tokens in each worker.", _why("llama.cpp")
    ),
    Fact(
        "A higher number is more urgent, and an urgent request may interrupt one that matters less.",
        (
            "How do priorities work in InferFlux?",
            "How do priorities work?",
            "Tell me about priorities in InferFlux.",
            "What does a priority mean in InferFlux?",
            "Explain the priorities of InferFlux.",
            "Is a higher priority more urgent?",
            "What does a higher priority do?",
            "How does InferFlux treat an urgent request?",
        ),
    ),
    Fact(
        "Preemption parks a running request so that a more urgent one can use its place, and resumes it "
        "later.",
        (*_about("preemption"), "What is preemption in InferFlux?", "How does InferFlux preempt a request?"),
    ),
    Fact(
        "A prefix cache keeps the work done for the start of a prompt, so that the next request can skip it.",
        (
            *_about("a prefix cache"),
            *_about("the prefix cache"),
            "How does prefix caching work in InferFlux?",
        ),
    ),
    Fact(
        "Continuous batching computes the next token of many requests in one step, and lets new requests "
        "join at any step.",
        (
            *_about("continuous batching"),
            "How does InferFlux batch requests?",
            "What is batching in InferFlux?",
        ),
    ),
    Fact(
        "A KV cache holds the keys and values of the tokens that a model has already read.",
        (*_about("a KV cache"), *_about("the KV cache"), "What is in the KV cache?"),
    ),
    Fact(
        "A draft model guesses several tokens ahead, and the main model checks them all in one step.",
        (
            *_about("a draft model"),
            *_about("the draft model"),
            "How does speculation with a draft model work?",
        ),
    ),
    Fact(
        "InferFlux is written in Python, and llama.cpp does the heavy work in C++.",
        (
            "Which language is InferFlux written in?",
            "What is InferFlux written in?",
            "Is InferFlux written in Python?",
            "In what language is InferFlux written?",
            "What programming language does InferFlux use?",
            "Which programming language is InferFlux made with?",
        ),
    ),
    Fact(
        "I am the InferFlux demo model, a very small language model.",
        (
            "Who are you?",
            "What are you?",
            "Tell me who you are.",
            "Can you introduce yourself?",
            "Introduce yourself.",
            "Which model are you?",
            "What model is this?",
            "Are you a language model?",
            "Tell me about yourself.",
        ),
    ),
    Fact(
        "I can greet you, add and subtract, name capitals, count, repeat text, write JSON, tell stories and "
        "explain InferFlux.",
        (
            "What can you do?",
            "What are you able to do?",
            "Tell me what you can do.",
            "How can you help me?",
            "What are your skills?",
            "Which tasks can you do?",
            "What can I ask you?",
            "Help me, what can you do?",
        ),
    ),
)

FRAMES: Final = (
    "{}",
    "{}",
    "{}",
    "I have a question. {}",
    "One question: {}",
    "Quick question: {}",
    "{} Be brief.",
    "{} Thanks!",
)
