// The parts that the bindings of both kinds of session share.
#pragma once

#include "bindings/bindings.h"
#include "core/home_process.h"
#include "core/not_copied.h"
#include "session/session.h"

#include <map>
#include <memory>
#include <string>
#include <utility>

namespace spac::bindings {

// Returns the pointer of a llama.cpp object that Python gives as a number; null for None. Throws InputError.
void * context_pointer(const pybind11::object & address, const char * name);

// Returns the figures of a prompt cache, by their names.
inline pybind11::dict cached_dict(const Session::Cached & cached) {
    pybind11::dict stats;
    stats["n_prompts"]  = cached.n_prompts;
    stats["bytes"]      = cached.bytes;
    stats["n_stored"]   = cached.n_stored;
    stats["n_recalled"] = cached.n_recalled;
    return stats;
}

// Fills `config` in from keyword arguments, which have llama.cpp's names. Throws InputError for an unknown one, with a
// list of those known, and for a value of the wrong type.
void apply_keywords(const pybind11::dict & keywords, SessionConfig & config);

// Returns the sampling parameters that the keyword arguments describe. Those that are not given have their defaults.
// Throws InputError as apply_keywords() does.
SamplingConfig sampling_config(const pybind11::dict & keywords);

using Callbacks = std::map<std::string, pybind11::object>; // by event

// Throws InputError for an unknown event, with a list of those known. Throws it also for a callback that is neither
// None nor callable.
void check_callback(const std::string & event, const pybind11::object & callback);

// Returns listeners for the events in `callbacks`. Other events cost nothing. The listeners take the GIL, and borrow
// the callbacks.
Listeners listeners(const Callbacks & callbacks, bool keeps_draft_routes = false);

void bind_session_events(pybind11::module_ & m);

// Returns (chosen[n], top_ids[n, n_top], top[n, n_top]).
inline pybind11::tuple arrays_of(const TokenProbabilities & found) {
    const Shape shape = {static_cast<pybind11::ssize_t>(found.chosen.size()), found.n_top};
    return pybind11::make_tuple(copy_of(found.chosen), pybind11::array_t<int32_t>(shape, found.top_ids.data()),
                                pybind11::array_t<float>(shape, found.top.data()));
}

// A session and the Python objects that it needs: the owner of the contexts, and the callbacks. T is Session.
template <typename T> class SessionHolder : NotCopied {
  public:
    explicit SessionHolder(pybind11::object owner) : owner_(std::move(owner)) {}
    ~SessionHolder() { clear(); }

    T & get() const {
        if (session_ == nullptr) {
            throw InputError("the session is closed");
        }
        home_.check("the session");
        return *session_;
    }

    void on(const std::string & event, const pybind11::object & callback) {
        check_callback(event, callback);
        const Call call(*this);
        if (callback.is_none()) {
            callbacks_.erase(event);
        } else {
            callbacks_[event] = callback;
        }
        call->set_listeners(listeners(callbacks_, keeps_draft_routes_));
    }

    void keep_draft_routes(bool keeps) {
        const Call call(*this);
        call->set_listeners(listeners(callbacks_, keeps));
        keeps_draft_routes_ = keeps;
    }

    // Releases the contexts. Throws while a call runs.
    void close() {
        if (session_ == nullptr) {
            return;
        }
        if (home_.is_here()) {
            const Call check(*this);
        }
        clear();
    }

    int traverse(visitproc visit, void * arg) const {
        Py_VISIT(owner_.ptr());
        for (const auto & entry : callbacks_) {
            Py_VISIT(entry.second.ptr());
        }
        return 0;
    }

    // Releases the session and all Python objects. The garbage collector calls this too, when only the callbacks keep
    // the session. The session goes first, because it uses the contexts to its end.
    void clear() {
        if (home_.is_here()) {
            session_.reset();
        } else {
            static_cast<void>(session_.release()); // a child's copy cannot be ended without its threads
        }
        callbacks_.clear();
        owner_ = pybind11::none();
    }

  protected:
    // The session's one call under way. It is made before the GIL is released, so that nobody can change or close the
    // session while the call runs. It is made and destroyed with the GIL held.
    class Call : NotCopied {
      public:
        explicit Call(SessionHolder & owner) : owner_(owner), session_(owner.get()) {
            if (owner_.in_call_) {
                throw InputError("the session is in use: one call at a time, and none but set_draft_length() and "
                                 "cancel() from a callback");
            }
            owner_.in_call_ = true;
        }
        ~Call() { owner_.in_call_ = false; }

        T * operator->() const { return &session_; }
        T & operator*() const { return session_; }

      private:
        SessionHolder & owner_;
        T &             session_;
    };

    void begin(std::unique_ptr<T> session) {
        session_ = std::move(session);
        session_->set_listeners(listeners({}));
    }

  private:
    HomeProcess        home_;
    pybind11::object   owner_;
    Callbacks          callbacks_;
    bool               in_call_            = false;
    bool               keeps_draft_routes_ = false;
    std::unique_ptr<T> session_; // declared last, so destroyed first: it may still use the contexts
};

// Makes the type visible to the garbage collector. The callbacks usually belong to the object that holds the session,
// and only the collector can free such a cycle.
template <typename Holder> void collectable(PyHeapTypeObject * heap_type) {
    auto * type = &heap_type->ht_type;
    type->tp_flags |= Py_TPFLAGS_HAVE_GC;
    type->tp_traverse = [](PyObject * self, visitproc visit, void * arg) {
        Py_VISIT(Py_TYPE(self));
        if (!pybind11::detail::is_holder_constructed(self)) {
            return 0;
        }
        return pybind11::cast<Holder &>(pybind11::handle(self)).traverse(visit, arg);
    };
    type->tp_clear = [](PyObject * self) {
        if (pybind11::detail::is_holder_constructed(self)) {
            pybind11::cast<Holder &>(pybind11::handle(self)).clear();
        }
        return 0;
    };
}

} // namespace spac::bindings
