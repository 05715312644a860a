"""Options of vLLM's that Octavo has not: what happens to them, and why. No row is silent.

Command lines and scripts that were written for vLLM should work. An option that would change nothing here is accepted with a
note; one whose wish cannot be met is refused with the reason, unless its value wishes for nothing. An option of our own with the
same name takes the place of its row here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from octavo.base.errors import ConfigError

Takes = Literal["nothing", "one", "many"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """An option: its name with underscores. harmless: values that may pass though it is refused; None accepts all."""

    name: str
    takes: Takes
    why: str
    harmless: tuple[str, ...] | None

    @property
    def refused(self) -> bool:
        """Whether values that wish for something are refused."""
        return self.harmless is not None

    def check(self, value: Any) -> str:
        """Return the note for a value; raises ConfigError if it cannot be met."""
        wishes = value is not None and value is not False and value != ()
        if self.harmless is not None and wishes and str(value) not in self.harmless:
            raise ConfigError(f"{self.name} is not supported: {self.why}", field=self.name)
        return f"{self.name} changes nothing: {self.why}"


def _accept(names: str, why: str, takes: Takes = "one") -> list[Foreign]:
    return [Foreign(name=name, takes=takes, why=why, harmless=None) for name in names.split()]


def _refuse(names: str, why: str, takes: Takes = "one", harmless: str = "") -> list[Foreign]:
    values = tuple(harmless.split())
    return [Foreign(name=name, takes=takes, why=why, harmless=values) for name in names.split()]


_LATER = "Octavo does not do this yet"
_MEDIA = "only text is taken so far"
_OFFLOAD = "weights and pages stay on their device"
_ONE_MACHINE = "one engine over the processes of one machine so far (--tensor-parallel-size, --pipeline-parallel-size)"
_CHOSEN = "kernels are chosen from the facts of the machine; `octavo doctor` shows which, and why"
_GRAPHS = "a few sizes of steps are recorded, and more as they are needed: there are none to choose"
_LOG = "OCTAVO_LOG_LEVEL is the level of all logs, which go to standard error in one format"

_ROWS = (
    # The model.
    *_accept("runner tokenizer_mode", "it follows from the files of the model"),
    *_refuse("convert", "a model is served as what its architecture is", harmless="auto none"),
    *_refuse("hf_config_path", "config.json lies beside the weights; --hf-overrides changes keys of it"),
    *_accept("allowed_local_media_path allowed_media_domains", _MEDIA),
    *_accept("code_revision", "no code that comes with weights is run"),
    *_refuse("tokenizer_revision", "give --tokenizer the folder of that revision"),
    *_refuse("quantization_config", "the format of weights follows from the checkpoint"),
    *_accept("allow_deprecated_quantization", "the format of weights follows from the checkpoint", "nothing"),
    *_refuse("enable_return_routed_experts return_sampling_mask enable_trace_replay", _LATER, "nothing"),
    *_refuse("use_fp64_gumbel", "draws are made from counter-based random numbers, in one precision", "nothing"),
    *_refuse("disable_sliding_window", "a model's windows are part of its answers", "nothing"),
    *_accept("disable_cascade_attn", "there is no such path to switch off", "nothing"),
    *_refuse("enable_prompt_embeds", _LATER, "nothing"),
    *_refuse("config_format", "config.json or the metadata of a GGUF file", harmless="auto hf"),
    *_refuse("hf_token", "a token on the command line can be read by everybody on the machine: set HF_TOKEN"),
    *_refuse("model_class_overrides", "a package replaces or adds an architecture by an entry point (octavo.models)"),
    *_refuse("pooler_config", _LATER),
    *_refuse("enable_sleep_mode sleep_mode_offload_cudagraph", _LATER, "nothing"),
    *_refuse("sleep_preserve_parameter_names", _LATER),
    *_accept("enable_cumem_allocator enable_nccl_comm_suspend", "it serves sleep, which is not built yet", "nothing"),
    *_refuse("model_impl", "every architecture is Octavo's own or a plugin's", harmless="auto vllm"),
    *_refuse("io_processor_plugin", _LATER),
    *_accept("renderer_num_workers", "long texts are read in threads of the front, as many as help"),
    # Loading.
    *_refuse("download_dir", "set HF_HUB_CACHE"),
    *_accept(
        "safetensors_load_strategy safetensors_prefetch_num_threads safetensors_prefetch_block_size pt_load_map_location",
        "weights are mapped and read tensor by tensor",
    ),
    *_refuse("model_loader_extra_config", "weights are read in one way", harmless="{}"),
    *_accept("ignore_patterns", "only the files that are needed are downloaded", "many"),
    *_accept("use_tqdm_on_load", "a terminal gets a progress bar, a file does not", "nothing"),
    # Attention, recurrent layers, kernels, compilation.
    *_refuse("attention_backend", _CHOSEN, harmless="auto"),
    *_accept("mamba_backend mamba_ssu_algorithm mamba_cache_philox_rounds", _CHOSEN),
    *_refuse(
        "enable_mamba_cache_stochastic_rounding", "states are kept in the type in which they are computed", "nothing"
    ),
    *_accept("ir_op_priority moe_backend linear_backend sparse_indexer_topk_backend", _CHOSEN),
    *_accept("gdn_prefill_backend kda_prefill_backend kda_decode_backend attention_config kernel_config", _CHOSEN),
    *_accept("enable_flashinfer_autotune", _CHOSEN, "nothing"),
    *_accept("cudagraph_capture_sizes", _GRAPHS, "many"),
    *_accept("max_cudagraph_capture_size compilation_config optimization_level performance_mode", _GRAPHS),
    *_accept("additional_config", "there is nobody to read it"),
    # Answers in a form, tools, reasoning.
    *_refuse("reasoning_config structured_outputs_config tool_strict_level tool_server", _LATER),
    *_refuse(
        "reasoning_parser_plugin tool_parser_plugin", "a package adds dialects by the entry point octavo.dialects"
    ),
    *_accept("enable_auto_tool_choice", "models may always choose to call a tool", "nothing"),
    *_accept("exclude_tools_when_tool_choice_none", "they are always left out then", "nothing"),
    # Several processes.
    *_refuse("distributed_executor_backend", _ONE_MACHINE, harmless="mp uni"),
    *_refuse("nnodes data_parallel_size data_parallel_size_local", _ONE_MACHINE, harmless="1"),
    *_refuse("node_rank data_parallel_rank data_parallel_start_rank", _ONE_MACHINE, harmless="0"),
    *_refuse(
        "master_addr master_port data_parallel_address data_parallel_rpc_port data_parallel_backend", _ONE_MACHINE
    ),
    *_refuse(
        "data_parallel_hybrid_lb data_parallel_external_lb data_parallel_multi_port_external_lb headless",
        _ONE_MACHINE,
        "nothing",
    ),
    *_accept(
        "data_parallel_supervisor_port dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s "
        "dp_supervisor_probe_failure_threshold dp_sync_interval",
        _ONE_MACHINE,
    ),
    *_accept("disable_nccl_for_dp_synchronization", _ONE_MACHINE, "nothing"),
    *_accept("cpu_distributed_timeout_seconds", "--distributed-timeout-seconds holds for all"),
    *_accept("numa_bind_nodes numa_bind_cpus", "start it under numactl", "many"),
    *_accept("numa_bind", "start it under numactl", "nothing"),
    *_refuse("device_ids", "hide the other devices from the process (CUDA_VISIBLE_DEVICES)", "many"),
    *_refuse("decode_context_parallel_size prefill_context_parallel_size", _LATER, harmless="1"),
    *_accept(
        "dcp_comm_backend dcp_kv_cache_interleave_size cp_kv_cache_interleave_size", "it serves context parallelism"
    ),
    *_accept("dcp_q_replicate", "it serves context parallelism", "nothing"),
    *_accept(
        "enable_batch_sharded_sampling enable_ep_weight_filter enable_shm_tensor_arena", "it is about speed", "nothing"
    ),
    *_accept("enable_dbo disable_custom_all_reduce enable_hc_sp", "it is about speed", "nothing"),
    *_accept("dbo_decode_token_threshold dbo_prefill_token_threshold ubatch_size all2all_backend", "it is about speed"),
    *_accept("max_parallel_loading_workers", "every rank reads its own part"),
    *_refuse("enable_elastic_ep enable_eplb enable_fault_tolerance", _LATER, "nothing"),
    *_refuse("elastic_ep_max_dp_size eplb_config fault_tolerance_config", _LATER),
    *_refuse("expert_placement_strategy", "experts are spread in their order", harmless="linear"),
    *_refuse("ray_workers_use_nsight", _ONE_MACHINE, "nothing"),
    *_refuse("worker_cls worker_extension_cls scheduler_cls", "it cannot be replaced by a class", harmless="auto"),
    # Pages.
    *_refuse(
        "kv_cache_dtype mamba_cache_dtype mamba_ssm_cache_dtype", "pages hold the model's own type", harmless="auto"
    ),
    *_refuse("kv_cache_dtype_skip_layers", "pages hold the model's own type", "many"),
    *_accept(
        "prefix_caching_hash_algo prefix_match_unit prefix_cache_retention_interval",
        "there is one way to find prefixes",
    ),
    *_accept("mamba_cache_mode replayssm_buffer_len", "--mamba-block-size is the distance between kept states"),
    *_accept("enable_mamba_shared_prefix_checkpoint use_replayssm", "states are kept at block ends", "nothing"),
    *_accept("kv_sharing_fast_prefill swa_bounded_replay", "it is about speed", "nothing"),
    *_accept("disable_hybrid_kv_cache_manager", "all kinds of layers share one pool of pages", "nothing"),
    *_refuse("kv_offloading_size kv_offloading_backend", _OFFLOAD),
    *_refuse("cpu_offload_gb swap_space", _OFFLOAD, harmless="0"),
    *_refuse("offload_backend", _OFFLOAD, harmless="auto"),
    *_refuse("offload_group_size offload_num_in_group offload_prefetch_step", _OFFLOAD, harmless="0 1"),
    *_refuse("cpu_offload_params offload_params", _OFFLOAD, "many"),
    *_refuse("kv_transfer_config ec_transfer_config ec_manager_config", _LATER),
    # Images, sound, film.
    *_accept("language_model_only interleave_mm_strings skip_mm_profiling mm_device_do_normalize", _MEDIA, "nothing"),
    *_accept("limit_mm_per_prompt media_io_kwargs mm_processor_kwargs mm_processor_cache_gb", _MEDIA),
    *_accept("mm_processor_cache_type mm_hasher_algorithm mm_shm_cache_max_object_size_mb mm_processor_device", _MEDIA),
    *_accept("mm_encoder_tp_mode mm_encoder_attn_backend mm_encoder_attn_dtype mm_encoder_fp8_scale_path", _MEDIA),
    *_accept("mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin mm_tensor_ipc", _MEDIA),
    *_accept("video_pruning_rate video_pruning_method mm_ipc_gpu_memory_gb", _MEDIA),
    *_refuse("enable_mm_embeds mm_encoder_only", _MEDIA, "nothing"),
    *_accept("trust_request_mm_kwargs", _MEDIA, "nothing"),
    # Adapters.
    *_refuse("enable_lora fully_sharded_loras enable_tower_connector_lora specialize_active_lora", _LATER, "nothing"),
    *_refuse("enable_mixed_moe_lora_format enable_moe_shared_loras", _LATER, "nothing"),
    *_refuse("max_loras max_lora_rank max_cpu_loras lora_dtype default_mm_loras max_lora_cls_labels", _LATER),
    *_refuse("lora_target_modules lora_modules", _LATER, "many"),
    # Steps and the queue.
    *_refuse("max_num_scheduled_tokens", "--max-num-batched-tokens bounds a step"),
    *_refuse("max_num_active_seqs", "--max-num-seqs bounds what runs"),
    *_refuse("max_num_queued_tokens", "--max-num-queued-reqs bounds the queue"),
    *_accept(
        "enable_chunked_prefill disable_chunked_mm_input", "prompts are always computed in parts that fit", "nothing"
    ),
    *_accept("long_prefill_token_threshold prefill_schedule_interval watermark", "steps are filled in one way"),
    *_accept("long_prefill_token_threshold_adaptive", "steps are filled in one way", "nothing"),
    *_accept("scheduler_reserve_full_isl", "pages for a whole prompt are found before it begins", "nothing"),
    *_accept("stream_interval", "every request says it itself, in its field of that name"),
    # Drafts and other ways to generate.
    *_refuse("speculative_config spec_method spec_model spec_tokens watermark_config diffusion_config", _LATER),
    *_refuse("engram_config aux_output_config weight_transfer_config", _LATER),
    # Logs, traces, measures.
    *_accept("logging_config log_level log_config_file uvicorn_log_level", _LOG),
    *_accept("disable_access_log_for_endpoints", "accesses are not logged"),
    *_accept("disable_uvicorn_access_log", "accesses are logged with --enable-access-log only", "nothing"),
    *_accept("max_log_len", "prompts are not logged"),
    *_accept("enable_log_outputs enable_log_deltas", "answers are not logged", "nothing"),
    *_accept("log_error_stack", "defects are always logged with their stack", "nothing"),
    *_accept("aggregate_engine_logging enable_logging_iteration_details jit_monitor_verbose", _LOG, "nothing"),
    *_accept("jit_monitor_mode show_hidden_metrics_for_version", "there is nothing of the kind to show"),
    *_accept("fail_on_environ_validation", "the variables that are read are few, and checked", "nothing"),
    *_refuse("otlp_traces_endpoint profiler_config custom_histogram_buckets kv_cache_metrics_sample", _LATER),
    *_refuse("collect_detailed_traces", _LATER, "many"),
    *_refuse("kv_cache_metrics cudagraph_metrics enable_layerwise_nvtx_tracing enable_mfu_metrics", _LATER, "nothing"),
    *_refuse("per_request_spec_decode_metrics", "there are no drafts yet", harmless="none"),
    # The server.
    *_accept("chat_template_content_format", "it follows from the template"),
    *_refuse("response_role", "the role of an answer is assistant", harmless="assistant"),
    *_refuse("return_tokens_as_token_ids enable_per_request_metrics enable_tokenizer_info_endpoint", _LATER, "nothing"),
    *_accept("enable_prompt_tokens_details", "usage always says how many tokens were cached", "nothing"),
    *_accept("enable_server_load_tracking", "/load is always there", "nothing"),
    *_accept("enable_request_id_headers", "X-Request-Id is always given back", "nothing"),
    *_accept("cohere_is_reasoning_model", "there are no routes of Cohere's", "nothing"),
    *_accept("cohere_format", "there are no routes of Cohere's"),
    *_accept("anthropic_disabled_thinking_effort", "thinking that is disabled tells the template so"),
    *_refuse("tokens_only enable_scale_out grpc", _LATER, "nothing"),
    *_refuse("grpc_port", _LATER),
    *_refuse("fingerprint_mode", "answers carry no fingerprint", harmless="none"),
    *_refuse("fingerprint_value", "answers carry no fingerprint"),
    *_refuse("enable_ssl_refresh", "a new certificate is taken at the next start", "nothing"),
    *_refuse("middleware", "put a proxy in front, or add a route in a package of your own", "many"),
    *_accept("disable_fastapi_docs enable_offline_docs", "there is no such page", "nothing"),
    *_accept("h11_max_header_count", "the HTTP library's own limit holds"),
    *_accept("enable_flash_late_interaction", "there are no models of the kind", "nothing"),
)

FOREIGN = {row.name: row for row in _ROWS}
# Short spellings of rows.
SHORT = {
    "-dp": "data_parallel_size",
    "-n": "nnodes",
    "-r": "node_rank",
    "-cc": "compilation_config",
    "-sc": "speculative_config",
    "-ac": "attention_config",
    "-dc": "diffusion_config",
    "-O": "optimization_level",
}
