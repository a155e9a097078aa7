"""The tests of llama.cpp's server that do not apply here, by reason.

A pattern is one of fnmatch's for a test's name, with round brackets around its parameters.
"""

from __future__ import annotations

LISTED: dict[str, tuple[str, ...]] = {
    "spac serve has no router: one server has one model": (
        "test_router.py::*", "test_stream.py::*", "test_security.py::test_cors_origins_localhost_*",
    ),
    "spac serve has no tools, MCP servers or proxy for llama-server's page": (
        "test_mcp_servers.py::*", "test_tools_builtin.py::*", "test_proxy.py::*",
        "test_security.py::test_cors_origins_defaults_to_localhost_with_tools_enabled",
        "test_security.py::test_cors_proxy_only_forwards_explicit_proxy_headers",
    ),
    "spac serve has a page of its own": (
        "test_basic.py::test_no_ui", "test_security.py::test_access_static_assets_without_api_key",
    ),
    "spac serve does not sleep: its slots are the engine's": ("test_sleep.py::*",),
    "spac serve has no interface of Google's cloud": ("test_compat_gcp.py::*",),
    "spac serve has no reranking, and no embeddings without a pooling": (
        "test_rerank.py::*", "test_embedding.py::test_embedding_pooling_none*",
    ),
    "it downloads its adapters": ("test_lora.py::*",),
    "it downloads its images": (
        "test_slot_save.py::test_slot_restore_media_file_without_mmproj",
        "test_vision_api.py::*", "test_security.py::test_local_media_file(*",
        "test_slot_save.py::test_slot_save_restore_text_only_on_multimodal",
        "test_slot_save.py::test_slot_*image*", "test_compat_anthropic.py::test_anthropic_*vision*",
        "test_compat_anthropic.py::test_anthropic_*image*",
    ),
    "it compares texts or numbers of tokens of another model, and fails on llama-server too with ours": (
        "test_basic.py::test_load_split_model",
        "test_slot_save.py::test_slot_save_restore", "test_slot_save.py::test_slot_erase",
        "test_slot_save.py::test_slot_restore_legacy_token_list",
        "test_completion.py::test_completion(*", "test_completion.py::test_completion_stream(*",
        "test_completion.py::test_completion_with_openai_library",
        "test_completion.py::test_completion_stream_with_openai_library",
        "test_completion.py::test_completion_prompt_cache",
        "test_completion.py::test_nocache_long_input_prompt",
        "test_chat_completion.py::test_chat_completion(*",
        "test_chat_completion.py::test_chat_completion_stream(*",
        "test_chat_completion.py::test_chat_completion_cached_tokens",
        "test_chat_completion.py::test_chat_completion_with_openai_library",
        "test_chat_completion.py::test_completion_with_response_format(response_format1-*",
        "test_chat_completion.py::test_completion_with_json_schema(True-*",
        "test_chat_completion.py::test_return_progress(64-4-False)",
        "test_compat_oai_responses.py::test_responses_with_openai_library",
        "test_compat_oai_responses.py::test_responses_stream_with_openai_library",
        "test_infill.py::test_infill_with*",
        "test_embedding.py::test_embedding_usage_*",
        "test_embedding.py::test_embedding_error_prompt_too_long",
        "test_ctx_shift.py::test_ctx_shift_enabled",
        "test_ctx_shift.py::test_ctx_shift_disabled_short_prompt(-1-*",
        "test_ctx_shift.py::test_ctx_shift_disabled_long_prompt",
    ),
    "the model's text decides: ours begins a tool call and does not end it, by some CPUs' rounding": (
        "test_tool_call.py::test_completion_without_tool_call_fast(meta-llama-Llama-3.3-70B-Instruct-128-tools1*",
    ),
    "spac serve has the switch always on (--metrics, --cache-idle-slots)": (
        "test_metrics.py::test_metrics_disabled",
        "test_kv_keep_only_active.py::test_disabled_with_flag",
    ),
    "sequences share the context, so a slot may have all of it": (
        "test_basic.py::test_server_props", "test_basic.py::test_server_slots",
        "test_chat_completion.py::test_context_size_exceeded*",
    ),
    "an answer ends where the shared context is full, and others go on": (
        "test_completion.py::test_completion_unified(*",
    ),
    "an answer of Responses that its limit ends is incomplete, as OpenAI's are": (
        "test_compat_oai_responses.py::test_responses_stream_with_llama_telemetry",
    ),
    "spac serve listens on one address and has one name": (
        "test_basic.py::test_server_multiple_addresses", "test_basic.py::test_server_model_aliases_and_tags",
    ),
    "templates are Jinja's always (no --no-jinja), and have no names": (
        "test_chat_completion.py::test_chat_template", "test_chat_completion.py::test_apply_chat_template",
        "test_chat_completion.py::test_completion_with_response_format(response_format[0235]-*",
        "test_chat_completion.py::test_completion_with_json_schema(False-*",
    ),
    "spac serve has no --spec-synth-rates": (
        "test_speculative.py::test_with_and_without_draft", "test_speculative.py::test_synth_*",
    ),
    "spac serve has no --context-shift": ("test_speculative.py::test_with_ctx_shift",),
    "spac names the headers that a page asks for; browsers do not take * for authorization": (
        "test_security.py::test_cors_options(web.mydomain.fr-Access-Control-Allow-Headers-*",
    ),
}  # fmt: skip
