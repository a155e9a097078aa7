// Checks of the images in requests to llama.cpp's server.
//
// The linker's --wrap leads its calls here (csrc/CMakeLists.txt). They come from the threads that answer requests.
#include "backend/device/device.h"
#include "backend/experts/experts.h"
#include "core/error.h"
#include "download.h"
#include "hooks/loop_hooks.h"
#include "hooks/request_settings.h"
#include "mtmd-helper.h"
#include "mtmd.h"
#include "session/projector.h"

#include <string>
#include <utility>
#include <vector>

using spac::InputError;

extern "C" {
// A client must not make the machine ask other addresses for it.
std::pair<long, std::vector<char>>
__wrap__Z25common_remote_get_contentRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERK20common_remote_params(
    const std::string & url, const common_remote_params & /*params*/) {
    throw InputError("images are not fetched from " + url.substr(0, url.find(':')) +
                     " addresses here: send them as data: addresses");
}

mtmd_helper_bitmap_wrapper __real_mtmd_helper_bitmap_init_from_buf(const mtmd_context *  projector,
                                                                   const unsigned char * data, size_t n_bytes,
                                                                   bool placeholder, mtmd_helper_init_opt options);

mtmd_helper_bitmap_wrapper __wrap_mtmd_helper_bitmap_init_from_buf(const mtmd_context *  projector,
                                                                   const unsigned char * data, size_t n_bytes,
                                                                   bool placeholder, mtmd_helper_init_opt options) {
    spac::check_image(data, n_bytes, "the image");
    return __real_mtmd_helper_bitmap_init_from_buf(projector, data, n_bytes, placeholder, options);
}

int32_t __real_mtmd_tokenize(const mtmd_context * projector, mtmd_input_chunks * chunks, const mtmd_input_text * text,
                             const mtmd_bitmap * const * bitmaps, size_t n_bitmaps);

int32_t __wrap_mtmd_tokenize(const mtmd_context * projector, mtmd_input_chunks * chunks, const mtmd_input_text * text,
                             const mtmd_bitmap * const * bitmaps, size_t n_bitmaps) {
    const spac::AbortGuard guard;
    const auto             status = __real_mtmd_tokenize(projector, chunks, text, bitmaps, n_bitmaps);
    const auto * const     loop   = spac::RequestSettings::current();
    const int              limit  = loop != nullptr ? loop->image_tokens() : 0;
    for (size_t i = 0; status == 0 && limit > 0 && i < mtmd_input_chunks_size(chunks); ++i) {
        const auto * const chunk = mtmd_input_chunks_get(chunks, i);
        const auto         n     = mtmd_input_chunk_get_n_tokens(chunk);
        const bool         sees  = mtmd_input_chunk_get_type(chunk) == MTMD_INPUT_CHUNK_TYPE_IMAGE;
        if (sees && n > static_cast<size_t>(limit) && mtmd_decode_use_non_causal(projector, chunk)) {
            throw InputError("an image of " + std::to_string(n) +
                             " tokens is evaluated at once by this model, and a batch has " + std::to_string(limit) +
                             ": start with --batch and --ubatch of at least that");
        }
    }
    return status;
}

int32_t __real_mtmd_batch_encode(mtmd_batch * batch);

// Notes why images cannot be encoded. The server says only that they cannot.
int32_t __wrap_mtmd_batch_encode(mtmd_batch * batch) {
    spac::take_mtmd_fault();
    spac::take_memory_refusal();
    const auto status = __real_mtmd_batch_encode(batch);
    if (status != 0) {
        const auto refusal = spac::take_memory_refusal();
        spac::LoopHooks::set_fault(refusal.device.empty()
                                       ? "the image cannot be encoded: " + spac::take_mtmd_fault()
                                       : "the image needs more memory than " + refusal.device +
                                             " has left: give fewer slots, --image-max-tokens, or --no-mmproj-offload");
    }
    return status;
}
}
