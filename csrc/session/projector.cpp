#include "session/projector.h"

#include "backend/device/device.h"
#include "backend/experts/experts.h"
#include "backend/wrapper/device.h"
#include "core/error.h"
#include "llama.h"
#include "mtmd-helper.h"
#include "mtmd.h"
#include <stb/stb_image.h>

#include <algorithm>
#include <functional>
#include <map>
#include <sstream>
#include <utility>

namespace spac {

namespace {

// An image with more pixels is refused: its pixels alone take 300 MB.
constexpr int64_t max_pixels = 100'000'000;

// The first error that mtmd has logged on this thread since the last call of take_mtmd_fault().
thread_local std::string fault;

void on_log(ggml_log_level level, const char * text, void * /*user_data*/) {
    if (level == GGML_LOG_LEVEL_ERROR && fault.empty()) {
        fault = text;
    }
    ggml_log_callback callback  = nullptr;
    void *            user_data = nullptr;
    llama_log_get(&callback, &user_data);
    if (callback != nullptr) {
        callback(level, text, user_data);
    }
}

std::string name_of(size_t index, size_t count) {
    return count == 1 ? "the image" : "image " + std::to_string(index + 1);
}

mtmd::bitmap_ptr read_image(const mtmd_context * ctx, const std::string & file, const std::string & name) {
    const auto * data = reinterpret_cast<const unsigned char *>(file.data());
    check_image(data, file.size(), name);
    mtmd::bitmap_ptr bitmap(
        mtmd_helper_bitmap_init_from_buf(ctx, data, file.size(), false, mtmd_helper_init_opt_default()).bitmap);
    if (bitmap == nullptr || mtmd_bitmap_is_audio(bitmap.get())) {
        const char * const reason = stbi_failure_reason();
        throw InputError(name + " cannot be decoded" + (reason != nullptr ? std::string(": ") + reason : ""));
    }
    return bitmap;
}

// Returns the number that stands for a content. -1 is llama.cpp's "no token".
int32_t placeholder_of(const std::string & content) {
    return INT32_MIN | static_cast<int32_t>(std::hash<std::string>()(content) & 0x3fff'ffff);
}

} // namespace

std::string take_mtmd_fault() {
    auto text = std::exchange(fault, "");
    if (const auto mark = text.find("error: "); mark != std::string::npos) {
        text = text.substr(mark + 7);
    }
    text = text.substr(0, text.find('\n'));
    return text.empty() ? "no reason given" : text;
}

void check_image(const unsigned char * data, size_t n_bytes, const std::string & name) {
    const int size  = static_cast<int>(std::min<size_t>(n_bytes, INT32_MAX));
    int       width = 0, height = 0, channels = 0;
    if (!stbi_info_from_memory(data, size, &width, &height, &channels)) {
        throw InputError(name + " cannot be decoded: it is no JPEG, PNG, BMP, GIF, TGA, PSD, HDR or PNM file");
    }
    if (static_cast<int64_t>(width) * height > max_pixels) {
        throw InputError(name + " has " + std::to_string(width) + " x " + std::to_string(height) +
                         " pixels, at most 100 million are read: make it smaller");
    }
}

Projector::Projector(const ProjectorConfig & config) : marker_(config.marker) {
    if (config.model == nullptr) {
        throw InputError("a projector needs a model, got a null pointer");
    }
    mtmd_helper_log_set(on_log, nullptr);
    auto params             = mtmd_context_params_default();
    params.use_gpu          = !config.device.empty();
    params.device           = params.use_gpu ? static_cast<ggml_backend_dev_t>(device_handle(config.device)) : nullptr;
    params.print_timings    = false;
    params.n_threads        = config.n_threads;
    params.media_marker     = marker_.c_str();
    params.image_min_tokens = config.image_min_tokens;
    params.image_max_tokens = config.image_max_tokens;
    take_mtmd_fault();
    {
        const AbortGuard guard;
        context_.reset(mtmd_init_from_file(config.path.c_str(), static_cast<const llama_model *>(config.model), params),
                       mtmd_free);
    }
    if (context_ == nullptr) {
        throw InputError("the projector cannot be used: " + take_mtmd_fault());
    }
    if (!mtmd_support_vision(context_.get())) {
        throw InputError("this projector reads audio, which is not supported: give one that reads images");
    }
}

ImagePrompt Projector::tokenize(const std::string & text, const std::vector<std::string> & images) const {
    auto * const                     ctx = context_.get();
    std::vector<mtmd::bitmap_ptr>    bitmaps;
    std::vector<const mtmd_bitmap *> views;
    for (size_t i = 0; i < images.size(); ++i) {
        bitmaps.push_back(read_image(ctx, images[i], name_of(i, images.size())));
        views.push_back(bitmaps.back().get());
    }
    const mtmd_input_text    input = {text.data(), text.size(), /*add_special=*/true, /*parse_special=*/true};
    const mtmd::input_chunks chunks(mtmd_input_chunks_init());
    take_mtmd_fault();
    int status = 0;
    {
        const AbortGuard guard;
        status = mtmd_tokenize(ctx, chunks.ptr.get(), &input, views.data(), views.size());
    }
    if (status != 0) {
        throw InputError("the images cannot be read: " + take_mtmd_fault());
    }

    ImagePrompt                prompt;
    std::map<std::string, int> n_seen;
    prompt.n_images = static_cast<int>(images.size());
    prompt.text     = text;
    prompt.files    = images;
    for (size_t i = 0; i < chunks.size(); ++i) {
        const auto * const chunk = chunks[i];
        if (mtmd_input_chunk_get_type(chunk) == MTMD_INPUT_CHUNK_TYPE_TEXT) {
            size_t       n      = 0;
            const auto * tokens = mtmd_input_chunk_get_tokens_text(chunk, &n);
            prompt.tokens.insert(prompt.tokens.end(), tokens, tokens + n);
            continue;
        }
        // An image may have several pieces, and the same image may come twice.
        const std::string  image = mtmd_input_chunk_get_id(chunk);
        std::ostringstream content;
        content << image << '/' << n_seen[image]++ << '/' << mtmd_input_chunk_get_n_tokens(chunk) << '/'
                << mtmd_input_chunk_get_n_pos(chunk);
        prompt.tokens.insert(prompt.tokens.end(), mtmd_input_chunk_get_n_tokens(chunk), placeholder_of(content.str()));
    }
    return prompt;
}

} // namespace spac
