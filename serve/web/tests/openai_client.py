"""The `openai` package as a client. Arguments: the base URLs of a fast echo, a slow one with one place and one waiting,
one that asks for a key, one that fails every answer, one that calls a function, and perhaps the word "structured". Fails by assertion."""

import asyncio
import json
import sys
import threading
import time
import urllib.request

import openai
import pydantic

KEY = "0123456789abcdef0123456789abcdef"
FAST, SLOW, LOCKED, FAILING, CALLING = sys.argv[1:6]


def client(url, **more):
    return openai.OpenAI(base_url=url + "/v1", api_key=more.pop("api_key", "none"), **more)


def said(text):
    return [{"role": "system", "content": "Repeat."}, {"role": "user", "content": text}]


def metric(url, name):
    page = urllib.request.urlopen(url + "/metrics").read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith("spillway_" + name))


def until(condition):
    for _ in range(5000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def refused(error, call, **fields):
    try:
        call()
    except error as raised:
        for name, value in fields.items():
            assert getattr(raised, name) == value, (name, getattr(raised, name))
        return raised
    raise AssertionError(f"no {error.__name__}")


def chat():
    answer = client(FAST).chat.completions.create(
        model="echo", messages=said("hello"), temperature=0.5, top_p=0.9, seed=7, max_completion_tokens=50,
        logprobs=True, top_logprobs=2, n=2, stop=["#"],
        extra_body={"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1},
    )
    assert [choice.message.content for choice in answer.choices] == ["hello", "hello"]
    assert answer.choices[0].finish_reason == "stop" and answer.object == "chat.completion"
    assert len(answer.choices[0].logprobs.content) == 5
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2
    assert (answer.usage.completion_tokens, answer.usage.total_tokens) == (10, answer.usage.prompt_tokens + 10)
    # Its own answer goes back as it came.
    history = said("hello") + [answer.choices[0].message.model_dump(), {"role": "user", "content": "again"}]
    again = client(FAST).chat.completions.create(model="echo", messages=history)
    assert again.choices[0].message.content == "again"


def chat_streamed():
    stream = client(FAST).chat.completions.create(
        model="echo", messages=said("grüße 🌊"), stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "grüße 🌊", text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == len(text.encode())


def completions():
    answer = client(FAST).completions.create(model="echo", prompt=["one", "two"], max_tokens=10, logprobs=1)
    assert [choice.text for choice in answer.choices] == ["one", "two"]
    assert answer.choices[0].logprobs.tokens == ["o", "n", "e"]
    stream = client(FAST).completions.create(model="echo", prompt="three", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "three"


def responses():
    answer = client(FAST).responses.create(model="echo", input="hello", instructions="Repeat.", max_output_tokens=50)
    assert (answer.output_text, answer.status, answer.usage.output_tokens) == ("hello", "completed", 5)
    history = [{"role": "user", "content": "hello"}, *[item.model_dump() for item in answer.output]]
    again = client(FAST).responses.create(model="echo", input=[*history, {"role": "user", "content": "again"}])
    assert again.output_text == "again"
    with client(FAST).responses.stream(model="echo", input="grüße 🌊") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert text == stream.get_final_response().output_text == "grüße 🌊", text
    cut = client(FAST).responses.create(model="echo", input="hello", max_output_tokens=2)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def structured():
    class Person(pydantic.BaseModel):
        name: str
        tags: list[str]

    parsed = client(FAST).chat.completions.parse(model="echo", messages=said("Rosa, a, b"), response_format=Person)
    assert isinstance(parsed.choices[0].message.parsed, Person)
    free = client(FAST).chat.completions.create(
        model="echo", messages=said("words"), response_format={"type": "json_object"}
    )
    assert isinstance(json.loads(free.choices[0].message.content), dict)


def tools():
    class Weather(pydantic.BaseModel):
        city: str
        days: int

    offered = {"model": "echo", "messages": said("Rome?"), "tools": [openai.pydantic_function_tool(Weather, name="weather")]}
    asked = client(CALLING).chat.completions
    for choice in ("auto", "required", {"type": "function", "function": {"name": "weather"}}):
        answer = asked.parse(**offered, tool_choice=choice).choices[0]
        assert answer.finish_reason == "tool_calls" and answer.message.content is None
        assert answer.message.tool_calls[0].function.parsed_arguments == Weather(city="Rome", days=3)
    with asked.stream(**offered) as stream:
        names = [event.name for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion().choices[0]
    assert names == ["weather"] and final.finish_reason == "tool_calls"
    called = final.message.tool_calls[0]
    assert called.function.parsed_arguments == Weather(city="Rome", days=3)
    result = {"role": "tool", "tool_call_id": called.id, "content": "sunny"}
    history = [*said("Rome?"), answer.message.model_dump(exclude_none=True), {**result, "tool_call_id": answer.message.tool_calls[0].id}]
    for call in history[2]["tool_calls"]:
        call["function"].pop("parsed_arguments", None)
    history[2].pop("parsed", None)
    again = client(FAST).chat.completions.create(model="echo", messages=history, tools=offered["tools"], tool_choice="none")
    assert again.choices[0].message.content == "weather returned: sunny"


def several_at_once():
    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=FAST + "/v1", api_key="none") as asked:
            async def one(text, streamed):
                answer = await asked.chat.completions.create(model="echo", messages=said(text), stream=streamed)
                if not streamed:
                    return answer.choices[0].message.content
                return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])

            texts = [f"text {n}" for n in range(24)]
            assert await asyncio.gather(*(one(text, n % 2 == 0) for n, text in enumerate(texts))) == texts

    asyncio.run(all_of_them())


def models():
    listed = client(FAST).models.list()
    assert [model.id for model in listed] == ["echo"]
    assert client(FAST).models.retrieve("echo").owned_by == "spillway"


def errors():
    once = client(FAST, max_retries=0)

    def ask(**more):
        return lambda: once.chat.completions.create(**({"model": "echo", "messages": said("a")} | more))

    refused(openai.NotFoundError, ask(model="other"), code="model_not_found", param="model")
    refused(openai.BadRequestError, ask(messages=said("a" * 5000)), code="context_length_exceeded")
    assert ask(max_tokens=1_000_000)().choices[0].message.content == "a"
    refused(openai.BadRequestError, ask(temperature=-1), param="temperature", type="invalid_request_error")
    refused(openai.BadRequestError, ask(extra_body={"temprature": 1}), code="unknown_parameter", param="temprature")
    refused(openai.NotFoundError, lambda: once.embeddings.create(model="echo", input="a"))
    refused(openai.AuthenticationError, client(LOCKED).models.list, code="invalid_api_key")
    assert client(LOCKED, api_key=KEY).models.list().data
    failing = client(FAILING, max_retries=0)
    refused(openai.InternalServerError,
            lambda: failing.chat.completions.create(model="echo", messages=said("a")), type="server_error")


def cancelled():
    before = metric(SLOW, "cancelled_total")
    stream = client(SLOW).chat.completions.create(model="echo", messages=said("long " * 500), stream=True)
    for _ in range(3):
        next(stream)
    stream.close()
    until(lambda: metric(SLOW, "cancelled_total") == before + 1)
    until(lambda: metric(SLOW, "active_sequences") == 0)


def retried():
    refusals = 'requests_total{route="/v1/completions",status="429"}'
    enough = threading.Event()

    def fill():
        stream = client(SLOW, max_retries=0).chat.completions.create(model="echo", messages=said("busy " * 400), stream=True)
        enough.wait()
        stream.close()

    threads = []
    for full in ("active_sequences", "queue_length"):
        threads.append(threading.Thread(target=fill, daemon=True))
        threads[-1].start()
        until(lambda: metric(SLOW, full) == 1)
    refused(openai.RateLimitError,
            lambda: client(SLOW, max_retries=0).completions.create(model="echo", prompt="a"), code="rate_limit_exceeded")
    answers = []

    def insist():
        answers.append(client(SLOW, max_retries=100).completions.create(model="echo", prompt="a").choices[0].text)

    threads.append(threading.Thread(target=insist, daemon=True))
    threads[-1].start()
    # The server stays full until the package has been refused and comes back by itself.
    until(lambda: metric(SLOW, refusals) >= 2)
    enough.set()
    for thread in threads:
        thread.join()
    assert answers == ["a"], answers


checks = [structured, tools] if "structured" in sys.argv else []
for check in (*checks, chat, chat_streamed, completions, responses, several_at_once, models, errors, cancelled, retried):
    check()
    print("ok", check.__name__, flush=True)
