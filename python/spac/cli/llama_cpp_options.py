"""llama.cpp's options that spac does not have: it accepts the unneeded ones and refuses the others.

An accepted option yields a note that says what happens instead. A refused option yields an error with the
remedy. An option that changes the generated text, or without which generation fails, is refused. An option
that only makes llama.cpp faster is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

_TEXT = ("run", "bench")
_ON_OFF = ("on", "off", "auto", "enabled", "disabled", "true", "false", "1", "0", "-1")


@dataclass(frozen=True)
class Foreign:
    """Options of llama.cpp that get the same answer.

    `flags` has their names, separated by spaces. They take `n_values` values, or one optional value out of
    `maybe`. Refused options are accepted with a value out of `unless`.
    """

    flags: str
    text: str
    n_values: int = 0
    is_refused: bool = False
    unless: tuple[str, ...] = ()
    maybe: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()  # empty: all programs

    def takes(self, n_taken: int, word: str) -> bool:
        """Return True if a word is the option's next value, after `n_taken` others."""
        return n_taken < self.n_values or (n_taken == 0 and word in self.maybe)

    def refuses(self, values: list[str]) -> bool:
        """Return True if the option is refused with these values."""
        return self.is_refused and not (values and values[0] in self.unless)

    @property
    def note(self) -> str:
        """The note that the user gets if the option is accepted."""
        return self.text.partition(":")[0] if self.is_refused else self.text


def _accepted(
    text: str, *flags: str, maybe: tuple[str, ...] = (), programs: tuple[str, ...] = ()
) -> list[Foreign]:
    """Return accepted options; `flags[n]` has those with n values."""
    return [Foreign(names, text, n, maybe=maybe, programs=programs) for n, names in enumerate(flags)]


def _refused(
    text: str, *flags: str, unless: tuple[str, ...] = (), programs: tuple[str, ...] = ()
) -> list[Foreign]:
    return [Foreign(names, text, n, True, unless, programs=programs) for n, names in enumerate(flags)]


# fmt: off
_ACCEPTED = [
    *_accepted("every expert is in host memory, and --slots says how many are on the GPU too", "--cpu-moe "
        "-cmoe --cpu-moe-draft -cmoed --spec-draft-cpu-moe", "--n-cpu-moe -ncmoe --n-cpu-moe-draft -ncmoed "
        "--spec-draft-n-cpu-moe --spec-draft-ncmoe"),
    *_accepted("not needed: experts are in host memory and in slots (--slots), the rest is on the GPU "
        "(--gpu-layers)", "", "--override-tensor -ot --override-tensor-draft -otd "
        "--spec-draft-override-tensor"),
    *_accepted("not needed: --slots auto fills what the GPU has left, and --vram-limit says how much that is",
        "", "--fit -fit --fit-target -fitt --fit-ctx -fitc --fit-print -fitp"),
    *_accepted("templates are always read as Jinja", "--jinja --no-jinja"),
    *_accepted("there is no warm-up run", "--warmup --no-warmup"),
    *_accepted("requests join and leave at every step", "--cont-batching -cb --no-cont-batching -nocb"),
    *_accepted("sequences share the context's memory", "--kv-unified -kvu --no-kv-unified -no-kvu",
        "--kv-unified-per-slot"),
    *_accepted("a context is not shifted: generation ends when it is full, and chat leaves out the oldest "
        "exchanges", "--context-shift --no-context-shift", "--keep"),
    *_accepted("what a prompt shares with the one before is not read again; of others, --cache-ram is the "
        "measure", "--cache-prompt --no-cache-prompt --cache-idle-slots --no-cache-idle-slots "
        "--prompt-cache-all --prompt-cache-ro", "--cache-reuse --slot-prompt-similarity -sps --prompt-cache"),
    *_accepted("colours are the terminal's matter (NO_COLOR)", "--color -co", maybe=_ON_OFF),
    *_accepted("text goes to stdout as it is, all else to stderr", "--simple-io"),
    *_accepted("--echo shows the prompt", "--display-prompt --no-display-prompt --verbose-prompt"),
    *_accepted("this program continues text, always", "--no-conversation -no-cnv -st --single-turn",
        programs=_TEXT),
    *_accepted("this program is a conversation, always", "--conversation -cnv --interactive -i "
        "--interactive-first -if --multiline-input -mli", programs=("chat",)),
    *_accepted("/metrics is always there", "--metrics", programs=("serve",)),
    *_accepted("--stats tells the figures", "--perf --no-perf --show-timings --no-show-timings",
        "--print-token-count -ptc"),
    *_accepted("llama.cpp's log is shown on stderr, and only with --verbose", "--log-disable --log-jsonl "
        "--no-log-jsonl --log-prefix --no-log-prefix --log-timestamps --no-log-timestamps --log-verbose",
        "--log-file --log-verbosity --verbosity -lv --log-prompts-dir"),
    *_accepted("llama.cpp's log is shown as it comes", "--log-colors", maybe=_ON_OFF),
    *_accepted("no projector is ever downloaded", "--no-mmproj --no-mmproj-auto"),
    *_accepted("the system decides where threads run: taskset, numactl or nice set it from outside", "",
        "--cpu-mask -C --cpu-range -Cr --cpu-strict --prio --poll --cpu-mask-batch -Cb --cpu-range-batch "
        "-Crb --cpu-strict-batch --prio-batch --poll-batch --numa --cpu-mask-draft -Cd --cpu-range-draft "
        "-Crd --cpu-strict-draft --prio-draft --poll-draft --cpu-mask-batch-draft -Cbd "
        "--cpu-range-batch-draft -Crbd --cpu-strict-batch-draft --prio-batch-draft --poll-batch-draft "
        "--spec-draft-cpu-mask --spec-draft-cpu-range --spec-draft-cpu-strict --spec-draft-prio "
        "--spec-draft-poll --spec-draft-cpu-mask-batch --spec-draft-cpu-range-batch "
        "--spec-draft-cpu-strict-batch --spec-draft-prio-batch --spec-draft-poll-batch"),
    *_accepted("the draft computes with --threads", "", "--threads-draft -td --threads-batch-draft -tbd "
        "--spec-draft-threads --spec-draft-threads-batch"),
    *_accepted("left as llama.cpp has it where nothing is said", "--repack --no-repack -nr --no-host "
        "--op-offload --no-op-offload --check-tensors --backend-sampling -bs --spec-draft-backend-sampling "
        "--no-spec-draft-backend-sampling", "--lazy-mode -lzm --defrag-thold -dt --spec-draft-p-split "
        "--draft-p-split --spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match "
        "--spec-ngram-simple-size-n --spec-ngram-simple-size-m --spec-ngram-simple-min-hits "
        "--spec-ngram-map-k-size-n --spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits "
        "--spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits "
        "--spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits"),
    *_accepted("text is taken as it stands", "--no-escape"),
    *_accepted("text is taken as it stands", "--escape -e", programs=("chat", "serve", "bench")),
    *_accepted("properties do not change while the server runs", "--props", programs=("serve",)),
    *_accepted("not needed: requests wait as long as they must, and the model stays loaded", "", "--timeout "
        "-to --threads-http --sse-ping-interval --sleep-idle-seconds --tags", programs=("serve",)),
    *_accepted("only spac chat and spac serve have a template", "--skip-chat-parsing --no-skip-chat-parsing "
        "--reasoning-preserve --no-reasoning-preserve", "--chat-template --chat-template-file "
        "--chat-template-kwargs --reasoning -rea --reasoning-budget --reasoning-format --reasoning-effort "
        "--reasoning-budget-message", programs=_TEXT),
    *_accepted("only spac serve makes answers in parts", "--skip-chat-parsing --no-skip-chat-parsing",
        "--reasoning-format --reasoning-budget-message", programs=("chat",)),
]
_REFUSED = [
    *_refused("name the model: give --hf-repo OWNER/REPO or --target FILE, or a short name such as "
        "gpt-oss-20b", "--gpt-oss-20b-default --gpt-oss-120b-default --fim-qwen-1.5b-default "
        "--fim-qwen-3b-default --fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec "
        "--fim-qwen-30b-default --vision-gemma-4b-default --vision-gemma-12b-default --embd-gemma-default",
        "--model-url -mu --docker-repo -dr"),
    *_refused("spac models lists them", "--cache-list -cl"),
    *_refused("give --draft-type draft-mtp", "--mtp"),
    *_refused("give --draft-type draft-eagle3 and --draft FILE", "--eagle3"),
    *_refused("give --draft-type draft-dflash and --draft FILE", "--dflash"),
    *_refused("give --draft-type ngram-mod", "--spec-default"),
    *_refused("text and images alone are read here, no sound and no video: leave it out", "", "--audio "
        "--video --video-fps --video-timestamp-interval --video-ffmpeg-dir"),
    *_refused("images come in the requests: leave it out", "", "--media-path"),
    *_refused("give images in the chat: /image FILE", "", "--image", programs=("chat",)),
    *_refused("name the projector's file: --mmproj FILE", "--mmproj-auto", "--mmproj-url -mmu"),
    *_refused("the projector is on the model's device, or with --no-mmproj-offload on the CPU: leave it out",
        "", "--mmproj-device -mmdev"),
    *_refused("images are encoded one after the other: leave it out", "", "--mtmd-batch-max-tokens"),
    *_refused("each generation decodes one sequence: leave it out (--parallel sets how many generations run)",
        "", "--sequences -ns", unless=("1", "-1")),
    *_refused("the draft is on the main GPU (--main-gpu), or, with --gpu-layers-draft 0, on the CPU", "",
        "--device-draft -devd --spec-draft-device"),
    *_refused("give --gpu-layers N, with fewer layers", "", "--n-cpu-ffn -ncffn"),
    *_refused("use spac chat", "--conversation -cnv --interactive -i --interactive-first -if "
        "--multiline-input -mli", "--system-prompt -sys --system-prompt-file -sysf", programs=_TEXT),
    *_refused("use spac run", "--no-conversation -no-cnv", programs=("chat",)),
    *_refused("pipe the message to spac chat: its answer goes to stdout", "--single-turn -st",
        "--prompt -p --file -f --binary-file -bf", programs=("chat",)),
    *_refused('give --system "$(cat FILE)"', "", "--system-prompt-file -sysf", programs=("chat",)),
    *_refused("give --file FILE", "", "--binary-file -bf --in-file --context-file", programs=_TEXT),
    *_refused("the chat template says what surrounds a message: --chat-template-file names another",
        "--in-prefix-bos", "--in-prefix --in-suffix"),
    *_refused("control vectors are not supported: leave it out", "",
        "--control-vector --control-vector-scaled", "--control-vector-layer-range"),
    *_refused("not supported: --rope-scaling yarn extends a context", "",
        "--grp-attn-n -gan --grp-attn-w -gaw"),
    *_refused("not supported, and it would change the text: leave it out", "--special -sp",
        "--adaptive-target --adaptive-decay --dry-sequence-breaker --lookup-cache-static -lcs "
        "--lookup-cache-dynamic -lcd --spec-synth-len --spec-synth-rates"),
    *_refused("spac doctor lists the devices", "--list-devices"),
    *_refused("spac --version tells it", "--version"),
    *_refused("--help lists the options", "--usage"),
    *_refused("an answer ends where its model ends it: leave it out", "", "--reverse-prompt -r",
        programs=("chat",)),
    *_refused("answers go to stdout: redirect that", "", "--output -o --output-file", programs=("chat",)),
    *_refused("requests say where they end (stop)", "", "--reverse-prompt -r", programs=("serve",)),
    *_refused("this server generates text and makes embeddings alone: leave it out",
        "--rerank --reranking --spm-infill", "--attention --embd-normalize", programs=("serve",)),
    *_refused('give SPAC_API_KEY="$(cat FILE)" in the environment', "", "--api-key-file",
        programs=("serve",)),
    *_refused("put a reverse proxy in front", "--reuse-port --cors-credentials --no-cors-credentials",
        "--ssl-key-file --ssl-cert-file --api-prefix --path --cors-origins --cors-methods --cors-headers",
        programs=("serve",)),
    *_refused("one model is served, and its server runs no tools: leave it out", "--models-autoload "
        "--no-models-autoload --agent -ag --no-agent -no-ag --ui-mcp-proxy --no-ui-mcp-proxy "
        "--webui-mcp-proxy --no-webui-mcp-proxy --lora-init-without-apply", "--models-dir --models-preset "
        "--models-max --tools --tools-runtime --mcp-servers-config --mcp-servers-json --ui-config "
        "--webui-config --ui-config-file --webui-config-file", programs=("serve",)),
    *_refused("requests say how many tokens they want (max_tokens)", "",
        "--predict --n-predict -n --max-tokens", programs=("serve",)),
    *_refused("requests bring their prompts", "", "--prompt -p --file -f --binary-file -bf",
        programs=("serve",)),
]
# fmt: on


def foreign_options(program: str) -> dict[str, Foreign]:
    """Return the options that `program` may get, by their names."""
    found = [
        each
        for each in (*_ACCEPTED, *_REFUSED, *_sampling(program))
        if not each.programs or program in each.programs
    ]
    return {flag: each for each in found for flag in each.flags.split()}


def _sampling(program: str) -> list[Foreign]:
    """Return the sampling options that the server refuses. Options that it has itself take precedence."""
    from spac.cli.spellings import SPELLINGS
    from spac.config.fields import option_fields
    from spac.config.sampling import SamplingConfig

    if program != "serve":
        return []
    text = "the server sets no default for it: leave it out"
    names = {item.name for item in option_fields(SamplingConfig)}
    fields = [(item.metadata["flags"], str(item.type)) for item in option_fields(SamplingConfig)]
    fields += [(each.flags, "") for each in SPELLINGS if each.field in names]
    return [Foreign(" ".join(flags), text, int(kind != "bool"), True) for flags, kind in fields]
