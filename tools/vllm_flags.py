"""The page docs/vllm-flags.md: every flag of `vllm serve` (0.32.0), and what becomes of it here. No row is silent."""

from __future__ import annotations

from octavo.config.engine import ALIASES
from octavo.config.flags import own_flags
from octavo.config.foreign import FOREIGN

# Flags by the groups in which vLLM shows them, without dashes in front.
GROUPS = {
    "ModelConfig": (
        "model runner convert tokenizer tokenizer-mode trust-remote-code dtype seed hf-config-path "
        "allowed-local-media-path allowed-media-domains revision code-revision tokenizer-revision max-model-len "
        "quantization quantization-config allow-deprecated-quantization enforce-eager enable-return-routed-experts "
        "return-sampling-mask max-logprobs logprobs-mode use-fp64-gumbel enable-trace-replay "
        "disable-sliding-window disable-cascade-attn skip-tokenizer-init enable-prompt-embeds served-model-name "
        "config-format hf-token hf-overrides model-class-overrides pooler-config generation-config "
        "override-generation-config enable-sleep-mode sleep-mode-offload-cudagraph sleep-preserve-parameter-names "
        "enable-cumem-allocator enable-nccl-comm-suspend model-impl logits-processors io-processor-plugin "
        "renderer-num-workers"
    ),
    "LoadConfig": (
        "load-format download-dir safetensors-load-strategy safetensors-prefetch-num-threads "
        "safetensors-prefetch-block-size model-loader-extra-config ignore-patterns use-tqdm-on-load "
        "pt-load-map-location"
    ),
    "AttentionConfig": ("attention-backend"),
    "MambaConfig": (
        "mamba-backend mamba-ssu-algorithm enable-mamba-cache-stochastic-rounding mamba-cache-philox-rounds"
    ),
    "StructuredOutputsConfig": ("reasoning-parser reasoning-parser-plugin"),
    "ParallelConfig": (
        "distributed-executor-backend pipeline-parallel-size master-addr master-port nnodes node-rank "
        "distributed-timeout-seconds cpu-distributed-timeout-seconds numa-bind numa-bind-nodes numa-bind-cpus "
        "device-ids tensor-parallel-size decode-context-parallel-size dcp-comm-backend dcp-q-replicate "
        "dcp-kv-cache-interleave-size cp-kv-cache-interleave-size prefill-context-parallel-size data-parallel-size "
        "data-parallel-rank data-parallel-start-rank data-parallel-size-local data-parallel-address "
        "data-parallel-rpc-port data-parallel-backend data-parallel-hybrid-lb data-parallel-external-lb "
        "data-parallel-multi-port-external-lb enable-hc-sp enable-expert-parallel enable-batch-sharded-sampling "
        "enable-ep-weight-filter all2all-backend enable-dbo enable-shm-tensor-arena ubatch-size enable-elastic-ep "
        "elastic-ep-max-dp-size dbo-decode-token-threshold dp-sync-interval dbo-prefill-token-threshold "
        "disable-nccl-for-dp-synchronization enable-eplb eplb-config expert-placement-strategy "
        "max-parallel-loading-workers ray-workers-use-nsight disable-custom-all-reduce worker-cls "
        "worker-extension-cls enable-fault-tolerance fault-tolerance-config"
    ),
    "CacheConfig": (
        "block-size device-memory-utilization gpu-memory-utilization kv-cache-memory-bytes kv-cache-dtype "
        "num-gpu-blocks-override enable-prefix-caching prefix-caching-hash-algo prefix-cache-retention-interval "
        "kv-cache-dtype-skip-layers kv-sharing-fast-prefill swa-bounded-replay mamba-cache-dtype "
        "mamba-ssm-cache-dtype mamba-block-size prefix-match-unit mamba-cache-mode "
        "enable-mamba-shared-prefix-checkpoint replayssm-buffer-len use-replayssm kv-offloading-size "
        "kv-offloading-backend"
    ),
    "OffloadConfig": (
        "offload-backend cpu-offload-gb cpu-offload-params offload-group-size offload-num-in-group "
        "offload-prefetch-step offload-params"
    ),
    "MultiModalConfig": (
        "language-model-only limit-mm-per-prompt enable-mm-embeds media-io-kwargs mm-processor-kwargs "
        "mm-processor-cache-gb mm-processor-cache-type mm-hasher-algorithm mm-shm-cache-max-object-size-mb "
        "mm-encoder-only mm-encoder-tp-mode mm-encoder-attn-backend mm-encoder-attn-dtype "
        "mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-path mm-encoder-fp8-scale-save-margin "
        "interleave-mm-strings skip-mm-profiling video-pruning-rate video-pruning-method mm-tensor-ipc "
        "mm-processor-device mm-ipc-gpu-memory-gb mm-device-do-normalize"
    ),
    "LoRAConfig": (
        "enable-lora max-loras max-lora-rank lora-dtype enable-tower-connector-lora max-cpu-loras "
        "fully-sharded-loras lora-target-modules default-mm-loras specialize-active-lora "
        "enable-mixed-moe-lora-format enable-moe-shared-loras max-lora-cls-labels"
    ),
    "LoggingConfig": ("logging-config log-level log-config-file"),
    "ObservabilityConfig": (
        "show-hidden-metrics-for-version otlp-traces-endpoint collect-detailed-traces "
        "per-request-spec-decode-metrics kv-cache-metrics kv-cache-metrics-sample custom-histogram-buckets "
        "cudagraph-metrics enable-layerwise-nvtx-tracing enable-mfu-metrics enable-logging-iteration-details "
        "jit-monitor-mode jit-monitor-verbose"
    ),
    "SchedulerConfig": (
        "max-num-batched-tokens max-num-scheduled-tokens max-num-seqs max-num-active-seqs max-num-queued-reqs "
        "max-num-queued-tokens long-prefill-token-threshold long-prefill-token-threshold-adaptive "
        "scheduling-policy enable-chunked-prefill disable-chunked-mm-input scheduler-cls "
        "scheduler-reserve-full-isl watermark prefill-schedule-interval disable-hybrid-kv-cache-manager "
        "async-scheduling stream-interval"
    ),
    "CompilationConfig": ("cudagraph-capture-sizes max-cudagraph-capture-size"),
    "KernelConfig": (
        "ir-op-priority enable-flashinfer-autotune moe-backend linear-backend sparse-indexer-topk-backend"
    ),
    "VllmConfig": (
        "speculative-config spec-method spec-model spec-tokens watermark-config diffusion-config "
        "kv-transfer-config kv-events-config ec-transfer-config ec-manager-config compilation-config "
        "attention-config engram-config reasoning-config kernel-config additional-config structured-outputs-config "
        "aux-output-config profiler-config optimization-level performance-mode weight-transfer-config"
    ),
    "other": (
        "disable-log-stats aggregate-engine-logging fail-on-environ-validation shutdown-timeout "
        "gdn-prefill-backend kda-prefill-backend kda-decode-backend enable-log-requests"
    ),
    "BaseFrontendArgs": (
        "lora-modules chat-template chat-template-content-format trust-request-chat-template "
        "trust-request-mm-kwargs default-chat-template-kwargs response-role return-tokens-as-token-ids "
        "enable-auto-tool-choice exclude-tools-when-tool-choice-none tool-call-parser tool-parser-plugin "
        "tool-strict-level tool-server max-log-len enable-prompt-tokens-details enable-per-request-metrics "
        "enable-server-load-tracking enable-force-include-usage sse-keep-alive-interval "
        "enable-tokenizer-info-endpoint enable-log-outputs enable-log-deltas cohere-is-reasoning-model "
        "cohere-format anthropic-disabled-thinking-effort log-error-stack tokens-only enable-scale-out "
        "fingerprint-mode fingerprint-value"
    ),
    "FrontendArgs": (
        "host port grpc-port data-parallel-supervisor-port dp-supervisor-probe-interval-s "
        "dp-supervisor-probe-timeout-s dp-supervisor-probe-failure-threshold uds uvicorn-log-level "
        "disable-uvicorn-access-log disable-access-log-for-endpoints allow-credentials allowed-origins "
        "allowed-methods allowed-headers api-key ssl-keyfile ssl-certfile ssl-ca-certs enable-ssl-refresh "
        "ssl-cert-reqs ssl-ciphers root-path middleware enable-request-id-headers disable-fastapi-docs "
        "h11-max-incomplete-event-size h11-max-header-count enable-offline-docs enable-flash-late-interaction"
    ),
    "Serve only": ("headless api-server-count config grpc"),
}
# Flag -> the test that holds what it does. Paths are below tests/.
TESTS = {
    "model": "host/checkpoint/test_open.py::test_a_hugging_face_folder",
    "tokenizer": "host/checkpoint/test_open.py::test_another_tokenizer_brings_its_template",
    "trust-remote-code": "host/checkpoint/test_open.py::test_code_from_a_checkpoint_is_never_run",
    "dtype": "host/cli/test_foreign.py::test_types_by_their_other_names",
    "seed": "models/test_loading.py::test_dummy_weights",
    "revision": "host/checkpoint/test_hub.py::test_a_revision",
    "max-model-len": "frontend/test_launch.py::test_a_context_that_was_asked_for_must_fit",
    "max-logprobs": "frontend/test_intake.py::test_logprobs_have_a_limit",
    "logprobs-mode": "worker/test_prompt_logprobs.py::test_the_mode_is_an_option_of_the_engine",
    "override-generation-config": "frontend/test_llm_sampling.py::test_the_engines_defaults_and_what_a_request_says",
    "logits-processors": "frontend/test_llm_sampling.py::test_processors_of_the_engine_reach_the_model",
    "skip-tokenizer-init": "frontend/test_intake.py::test_without_a_tokenizer_only_ids_are_taken",
    "served-model-name": "server/test_operations.py::test_models",
    "enforce-eager": "worker/test_graphs.py::test_why_there_are_no_graphs",
    "hf-overrides": "host/checkpoint/test_open.py::test_overrides_are_of_config_json",
    "generation-config": "host/checkpoint/test_open.py::test_how_the_makers_sample",
    "quantization": "models/test_quantization.py::test_a_model_gives_the_logits_of_its_rounded_weights",
    "load-format": "host/checkpoint/test_open.py::test_what_weights_are_taken_from_a_folder",
    "pipeline-parallel-size": "multi/test_answers.py::test_answers_equal_those_of_one_rank",
    "tensor-parallel-size": "multi/test_answers.py::test_answers_equal_those_of_one_rank",
    "enable-expert-parallel": "multi/test_answers.py::test_answers_equal_those_of_one_rank",
    "distributed-timeout-seconds": "multi/test_failures.py::test_a_rank_that_hangs_is_named",
    "block-size": "engine/test_geometry.py::test_little_is_wasted_on_shapes_that_people_run",
    "kv-events-config": "engine/test_cache_events.py::test_frames_are_as_subscribers_expect_and_missed_ones_are_told_again",
    "mamba-block-size": "worker/test_hybrid.py::test_a_second_prompt_resumes_from_a_checkpoint",
    "gpu-memory-utilization": "worker/test_memory.py::test_an_accelerator_keeps_its_share_back",
    "device-memory-utilization": "host/cli/test_flags.py::test_the_model_with_its_flag_and_the_spellings_of_vllm",
    "kv-cache-memory-bytes": "worker/test_memory.py::test_an_exact_size_is_taken_as_it_is",
    "num-gpu-blocks-override": "frontend/test_launch.py::test_an_exact_number_of_pages_is_taken_as_it_is",
    "enable-prefix-caching": "engine/test_scheduler.py::test_same_prompt_twice_hits_the_cache_and_salt_keeps_apart",
    "max-num-batched-tokens": "engine/test_scheduler.py::test_decodes_go_on_while_a_long_prompt_is_prefilled",
    "max-num-seqs": "engine/test_random_loads.py::test_every_answer_is_right_whatever_happens_beside_it",
    "max-num-queued-reqs": "frontend/test_service.py::test_a_full_queue_refuses_and_recovers",
    "max-num-queued-tokens": "frontend/test_service.py::test_the_queue_is_bounded_by_tokens_too",
    "scheduling-policy": "engine/test_scheduler.py::test_higher_priority_takes_the_place_of_lower",
    "async-scheduling": "engine/test_random_loads.py::test_every_answer_is_right_whatever_happens_beside_it",
    "sse-keep-alive-interval": "server/test_life.py::test_a_stream_that_waits_shows_that_it_lives",
    "api-server-count": "real/test_fronts.py::test_two_fronts_share_one_engine",
    "shutdown-timeout": "server/test_shutdown.py::test_what_outlives_the_timeout_gets_an_error_event_and_the_status_is_0",
    "disable-log-stats": "server/test_operations.py::test_what_the_server_does_is_a_line_now_and_then",
    "enable-log-requests": "server/test_operations.py::test_requests_are_logged_without_their_text",
    "chat-template": "host/checkpoint/test_open.py::test_where_a_template_comes_from",
    "default-chat-template-kwargs": "server/test_chat.py::test_messages_reach_the_template_as_sent",
    "tool-call-parser": "host/text/dialects/test_families.py::test_vllm_s_names_are_known_and_no_name_is_given_twice",
    "reasoning-parser": "server/test_tools.py::test_options_name_the_dialects",
    "enable-force-include-usage": "server/test_chat.py::test_usage_is_told_all_along_and_at_the_end",
    "host": "server/test_shutdown.py::test_an_address_that_is_not_one",
    "port": "server/test_shutdown.py::test_a_port_in_use_is_an_error_at_once",
    "uds": "server/test_doors.py::test_a_unix_socket_is_served_and_removed",
    "allow-credentials": "server/test_doors.py::test_pages_of_other_origins",
    "allowed-origins": "server/test_doors.py::test_pages_of_other_origins",
    "allowed-methods": "server/test_doors.py::test_pages_of_other_origins",
    "allowed-headers": "server/test_doors.py::test_pages_of_other_origins",
    "trust-request-chat-template": "server/test_chat.py::test_a_chat_brings_its_own_template_only_where_clients_are_trusted",
    "api-key": "server/test_doors.py::test_without_a_key_only_health_is_open",
    "ssl-keyfile": "server/test_doors.py::test_https",
    "ssl-certfile": "server/test_doors.py::test_https",
    "ssl-ca-certs": "server/test_doors.py::test_certificates_of_clients",
    "ssl-cert-reqs": "server/test_doors.py::test_certificates_of_clients",
    "ssl-ciphers": "server/test_doors.py::test_https_that_cannot_be_served_is_an_error_before_the_model_loads",
    "root-path": "server/test_doors.py::test_https",
    "h11-max-incomplete-event-size": "server/test_doors.py::test_headers_have_a_limit",
    "config": "host/cli/test_foreign.py::test_a_file_of_flags",
}


def state(flag: str) -> tuple[str, str]:
    """Return what becomes of a flag, and the test of it or the reason; raises KeyError for one without either."""
    name = flag.replace("-", "_")
    if name in own_flags() or name in ALIASES or name == "config":
        return "supported", f"`tests/{TESTS[flag]}`"
    row = FOREIGN[name]
    if not row.refused:
        return "accepted", row.why
    passing = f" (may be {' or '.join(f'`{value}`' for value in row.harmless or ())})" if row.harmless else ""
    return "refused", row.why + passing


def render_markdown() -> str:
    """Return the page."""
    lines = ["# Flags of `vllm serve`", "", *_PREFACE]
    for group, names in GROUPS.items():
        lines += ["", f"## {group}", "", "| Flag | Here | Test, or why |", "|---|---|---|"]
        lines += [f"| `--{flag}` | {' | '.join(state(flag))} |" for flag in names.split()]
    return "\n".join([*lines, ""])


_PREFACE = (
    "Generated by `tools/vllm_flags.py`; a test compares. Every flag that `vllm serve` 0.32 has, in its own groups:",
    "*supported*, with the test that holds it; *accepted*, with a note in the log, because it would change nothing here; or",
    "*refused*, with the reason. The same holds for the arguments of `LLM(...)`. A flag that nobody knows is an error that",
    "names the nearest known one.",
)
