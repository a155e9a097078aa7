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
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

namespace spac {

namespace {

// An image with more pixels is refused: its pixels alone take 300 MB.
constexpr int64_t max_pixels = 100'000'000;

// The first error that mtmd has logged on this thread since the last call of take_fault().
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

// Returns the fault as a clause for a message: one line, without the name of the function that reported it.
std::string take_fault() {
    auto text = std::exchange(fault, "");
    if (const auto mark = text.find("error: "); mark != std::string::npos) {
        text = text.substr(mark + 7);
    }
    text = text.substr(0, text.find('\n'));
    return text.empty() ? "no reason given" : text;
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

constexpr int32_t first_placeholder = -2; // -1 is llama.cpp's "no token"

} // namespace

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

struct ImagePiece {
    int32_t               placeholder;
    ImageExtent           extent;
    mtmd::input_chunk_ptr chunk;
};

// The loaded projector. After an image that could not be encoded, it is loaded again: llama.cpp no longer knows then
// where its compute buffers end. Whoever uses it keeps it alive.
struct Projector::Loaded {
    using Ptr = std::shared_ptr<mtmd_context>;

    Loaded(const ProjectorConfig & given, const std::string & marker);
    Ptr  open();
    void close();

    const ProjectorConfig config;
    const std::string     marker;

  private:
    std::mutex mutex_;
    Ptr        ctx_;
};

Projector::Loaded::Loaded(const ProjectorConfig & given, const std::string & marker_text)
    : config(given), marker(marker_text) {
    open();
}

Projector::Loaded::Ptr Projector::Loaded::open() {
    const std::lock_guard lock(mutex_);
    if (ctx_ != nullptr) {
        return ctx_;
    }
    auto params             = mtmd_context_params_default();
    params.use_gpu          = !config.device.empty();
    params.device           = params.use_gpu ? static_cast<ggml_backend_dev_t>(device_handle(config.device)) : nullptr;
    params.print_timings    = false;
    params.n_threads        = config.n_threads;
    params.media_marker     = marker.c_str();
    params.image_min_tokens = config.image_min_tokens;
    params.image_max_tokens = config.image_max_tokens;
    take_fault();
    {
        const AbortGuard guard;
        ctx_.reset(mtmd_init_from_file(config.path.c_str(), static_cast<const llama_model *>(config.model), params),
                   mtmd_free);
    }
    if (ctx_ == nullptr) {
        throw InputError("the projector cannot be used: " + take_fault());
    }
    if (!mtmd_support_vision(ctx_.get())) {
        throw InputError("this projector reads audio, which is not supported: give one that reads images");
    }
    return ctx_;
}

void Projector::Loaded::close() {
    const std::lock_guard lock(mutex_);
    ctx_.reset();
}

void route_mtmd_log() { mtmd_helper_log_set(on_log, nullptr); }

const ImagePiece * ImagePrompt::piece(int32_t placeholder) const {
    for (const auto & each : pieces) {
        if (each->placeholder == placeholder) {
            return each.get();
        }
    }
    return nullptr;
}

Projector::Projector(const ProjectorConfig & config) : marker_(config.marker) {
    if (config.model == nullptr) {
        throw InputError("a projector needs a model, got a null pointer");
    }
    route_mtmd_log();
    loaded_ = std::make_unique<Loaded>(config, marker_);
}

Projector::~Projector() = default;

std::shared_ptr<mtmd_context> Projector::context() const { return loaded_->open(); }

ImagePrompt Projector::tokenize(const std::string & text, const std::vector<std::string> & images) const {
    const auto                       loaded = loaded_->open();
    auto * const                     ctx    = loaded.get();
    std::vector<mtmd::bitmap_ptr>    bitmaps;
    std::vector<const mtmd_bitmap *> views;
    for (size_t i = 0; i < images.size(); ++i) {
        bitmaps.push_back(read_image(ctx, images[i], name_of(i, images.size())));
        views.push_back(bitmaps.back().get());
    }
    const mtmd_input_text    input = {text.data(), text.size(), /*add_special=*/true, /*parse_special=*/true};
    const mtmd::input_chunks chunks(mtmd_input_chunks_init());
    take_fault();
    int status = 0;
    {
        const AbortGuard guard;
        status = mtmd_tokenize(ctx, chunks.ptr.get(), &input, views.data(), views.size());
    }
    if (status != 0) {
        throw InputError("the images cannot be read: " + take_fault());
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
        const ImageExtent extent = {static_cast<int>(mtmd_input_chunk_get_n_tokens(chunk)),
                                    mtmd_input_chunk_get_n_pos(chunk)};
        // An image may have several pieces, and the same image may come twice.
        const std::string  image = mtmd_input_chunk_get_id(chunk);
        std::ostringstream content;
        content << image << '/' << n_seen[image]++ << '/' << extent.n_tokens << '/' << extent.n_pos;
        const auto placeholder = table_.placeholder(content.str(), extent);
        prompt.tokens.insert(prompt.tokens.end(), static_cast<size_t>(extent.n_tokens), placeholder);
        prompt.pieces.push_back(std::make_shared<ImagePiece>(
            ImagePiece{placeholder, extent, mtmd::input_chunk_ptr(mtmd_input_chunk_copy(chunk))}));
    }
    return prompt;
}

void Projector::check(const ImagePiece & piece, int n_batch, int n_ubatch) const {
    const int n_most = std::min(n_batch, n_ubatch);
    if (mtmd_decode_use_non_causal(loaded_->open().get(), piece.chunk.get()) && piece.extent.n_tokens > n_most) {
        throw InputError("an image of " + std::to_string(piece.extent.n_tokens) +
                         " tokens is evaluated at once by this model, and a batch has " + std::to_string(n_most) +
                         ": make batch and ubatch at least that large");
    }
}

int Projector::evaluate(llama_context * ctx, const ImagePiece & piece, int pos, int n_batch) const {
    auto       loaded = loaded_->open();
    const auto what   = "an image of " + std::to_string(piece.extent.n_tokens) + " tokens";
    take_fault();
    take_memory_refusal();
    int status = 0;
    {
        const AbortGuard guard;
        status = mtmd_encode_chunk(loaded.get(), piece.chunk.get());
    }
    if (status != 0) {
        loaded.reset();
        loaded_->close();
        if (const auto refusal = take_memory_refusal(); !refusal.device.empty()) {
            throw MemoryError(what + " needs more memory than " + refusal.device +
                              " has left: give fewer slots, --image-max-tokens, or --no-mmproj-offload");
        }
        throw DeviceError(what + " cannot be encoded: " + take_fault());
    }
    llama_pos end = pos;
    return mtmd_helper_decode_image_chunk(loaded.get(), ctx, piece.chunk.get(), mtmd_get_output_embd(loaded.get()), pos,
                                          0, n_batch, &end, nullptr, nullptr);
}

int32_t ImageTable::placeholder(const std::string & content, ImageExtent extent) {
    const std::lock_guard lock(mutex_);
    const auto [found, is_new] =
        placeholders_.try_emplace(content, first_placeholder - static_cast<int32_t>(extents_.size()));
    if (is_new) {
        extents_.push_back(extent);
    }
    return found->second;
}

ImageExtent ImageTable::extent(int32_t placeholder) const {
    const std::lock_guard lock(mutex_);
    const auto            index = static_cast<int64_t>(first_placeholder) - placeholder;
    return index >= 0 && index < static_cast<int64_t>(extents_.size()) ? extents_[static_cast<size_t>(index)]
                                                                       : ImageExtent{};
}

int ImageTable::position(const std::vector<int32_t> & tokens, int n) const {
    int pos = n;
    for (int i = 0; i < n;) {
        const auto token = tokens[static_cast<size_t>(i)];
        if (!is_placeholder(token)) {
            ++i;
            continue;
        }
        const auto image = extent(token);
        pos -= image.n_tokens - image.n_pos;
        i += std::max(image.n_tokens, 1);
    }
    return pos;
}

} // namespace spac
