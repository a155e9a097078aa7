// Checks that a draft model's tokens mean the same to the target. llama.cpp's own check answers yes or no and tolerates
// what its loop can stand. This one names the difference, and finds it before a loop exists.
#include "llama.h"
#include "session/session.h"

#include <cstdlib>
#include <cstring>
#include <string>

namespace spac {

namespace {

// The limits are llama.cpp's: files of one family pad their vocabularies to different sizes, and the first few ids are
// markers that differ in text between otherwise equal vocabularies.
constexpr int max_size_difference  = 128;
constexpr int first_compared_token = 5;

const char * type_name(enum llama_vocab_type type) {
    switch (type) {
    case LLAMA_VOCAB_TYPE_NONE:
        return "none";
    case LLAMA_VOCAB_TYPE_SPM:
        return "SPM";
    case LLAMA_VOCAB_TYPE_BPE:
        return "BPE";
    case LLAMA_VOCAB_TYPE_WPM:
        return "WPM";
    case LLAMA_VOCAB_TYPE_UGM:
        return "UGM";
    case LLAMA_VOCAB_TYPE_RWKV:
        return "RWKV";
    default:
        return "other";
    }
}

std::string token_name(const llama_vocab * vocab, llama_token token) {
    if (token < 0 || token >= llama_vocab_n_tokens(vocab)) {
        return "none";
    }
    return std::to_string(token) + " '" + llama_vocab_get_text(vocab, token) + "'";
}

std::optional<std::string> marker_mismatch(const char * name, const llama_vocab * target, const llama_vocab * draft,
                                           bool (*is_added)(const llama_vocab *),
                                           llama_token (*token)(const llama_vocab *)) {
    const bool target_adds = is_added(target);
    const bool draft_adds  = is_added(draft);
    if (target_adds != draft_adds) {
        return std::string(target_adds ? "the target adds " : "the draft adds ") + name + " to prompts, the " +
               (target_adds ? "draft" : "target") + " does not";
    }
    if (target_adds && token(target) != token(draft)) {
        return std::string(name) + " is token " + token_name(target, token(target)) + " in the target and " +
               token_name(draft, token(draft)) + " in the draft";
    }
    return std::nullopt;
}

} // namespace

std::optional<std::string> vocab_mismatch(const void * target_model, const void * draft_model) {
    if (target_model == nullptr || draft_model == nullptr) {
        throw InputError("vocab_mismatch needs two models, got a null pointer");
    }
    const auto * target = llama_model_get_vocab(static_cast<const llama_model *>(target_model));
    const auto * draft  = llama_model_get_vocab(static_cast<const llama_model *>(draft_model));

    const auto target_type = llama_vocab_type(target);
    const auto draft_type  = llama_vocab_type(draft);
    if (target_type != draft_type) {
        return std::string("the target's vocabulary is of type ") + type_name(target_type) + ", the draft's of type " +
               type_name(draft_type);
    }
    if (target_type == LLAMA_VOCAB_TYPE_NONE) {
        return "neither file holds a vocabulary, so nothing shows that their tokens are the same";
    }
    if (auto reason = marker_mismatch("BOS", target, draft, llama_vocab_get_add_bos, llama_vocab_bos)) {
        return reason;
    }
    if (auto reason = marker_mismatch("EOS", target, draft, llama_vocab_get_add_eos, llama_vocab_eos)) {
        return reason;
    }
    const int n_target = llama_vocab_n_tokens(target);
    const int n_draft  = llama_vocab_n_tokens(draft);
    if (std::abs(n_target - n_draft) > max_size_difference) {
        return "the target's vocabulary has " + std::to_string(n_target) + " tokens, the draft's " +
               std::to_string(n_draft) + ": they may differ by " + std::to_string(max_size_difference);
    }
    for (llama_token token = first_compared_token; token < std::min(n_target, n_draft); ++token) {
        const char * target_text = llama_vocab_get_text(target, token);
        const char * draft_text  = llama_vocab_get_text(draft, token);
        if (std::strcmp(target_text, draft_text) != 0) {
            return "token " + std::to_string(token) + " is '" + target_text + "' in the target and '" + draft_text +
                   "' in the draft";
        }
    }
    return std::nullopt;
}

} // namespace spac
