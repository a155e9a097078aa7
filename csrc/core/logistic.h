// One step of the scheduler that predicts the next step's experts by online logistic regression. It learns, predicts
// and plans for all experts of a model. python/spac/scheduler/logistic.py has the equations. The step is in C++ because
// of the caches: after a verification, they hold nothing of the interpreter. Then thirty small numpy operations take
// several times as long as in a loop of their own. The reference in numpy is tests/scheduler/reference_logistic.py.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace spac {

// Tables of which experts follow the late layers' experts of a token. These are pointers to the state,
// which belongs to the caller. The arrays are in C order. L: layers, N: experts, S: sources.
struct Transitions {
    int n_layer, n_expert, n_source;

    const int32_t * source;     // [S] layers
    float *         table;      // [S, N, L, N] shares of the steps after an expert of a source that used an expert
    float *         seen;       // [S, N] decayed counts of these steps
    uint8_t *       marked;     // [S, N] 1 for the last accepted token's experts
    double *        popularity; // [L, N] share of the steps that used an expert
    double *        steps;      // [1] decayed count of the steps that `popularity` averages; 0 before the first

    double kept;        // part of the counts that is left after a step
    double shrink;      // steps that the popularity counts for in a row of a table
    double first_steps; // steps that the first guess of the popularity counts for
    double floor;       // shares below it are as good as 0
    double least;       // a count below it becomes 0
};

constexpr int n_most_sources = 4;

// count, recent, near, far, position, rejected; popular, and the lift of each source of the transitions
constexpr int n_logistic_features = 6 + 1 + n_most_sources;

// Pointers to the state, which belongs to the caller. The arrays are in C order. L: layers, N: experts, P: pools.
struct LogisticState {
    int n_layer, n_expert, n_pool;

    double * weights;     // [12] of the features, then the bias
    double * squares;     // [12] of gradients, decayed
    float *  features;    // [11, L, N] for the last step
    float *  probability; // [L, N] for the next step; 0 in the padding, and everywhere before the first step

    const uint8_t * exists;     // [L, N]
    const int32_t * pool;       // [L]
    const int32_t * pool_slots; // [P] slots that are left for layers that are not whole
    const uint8_t * whole;      // [L] layers of which all experts are wanted

    Transitions transitions;
};

struct LogisticOptions {
    double rate;              // learning rate
    double recent, near, far; // part of these features that is left after a token
    double squares_kept;      // part of the squares that is left after a step
    double least;             // least value of a square; a feature below it becomes 0
    double most;              // largest absolute value of a weight
};

struct LogisticStep {
    const int32_t * demand;  // [L, N]
    const int32_t * slot_of; // [L, N]
    const int32_t * routes;  // [L, n_token, n_used], padded with -1; null if unknown
    int             n_token, n_used;
    int             n_verified, n_rejected; // tokens; the last n_rejected of them were rejected
    double          margin;                 // least gain in probability that is worth a copy
    double          hold;                   // weight of `near` beside the probability
};

// One step of the tables. It goes layer by layer, so that what a layer needs stays in the first cache.
class TransitionStep {
  public:
    // Counts the step, and marks the experts of its last accepted token. Without routes, the demand of a step of one
    // token tells them. exists: [L, N].
    TransitionStep(const Transitions & tables, const LogisticStep & step, const uint8_t * exists);

    // Learns from the step in the columns of the layer whose first expert is `first`. Then writes the features of the
    // next step at `features`, which is the layer's row of [1 + S, L, N]: log odds of the popularity, and the lift of
    // each source, which is 0 if no expert is marked.
    void move(int first, float * features);

  private:
    // A row of a table, [L, N], and the weight of the step in it, or of it in an estimate.
    struct Row {
        float * cells;
        float   weight;
    };

    float * row(int source, int expert) const;
    void    count(const uint8_t * exists);
    void    mark(const LogisticStep & step);
    void    learn(int first);

    const Transitions &                          t_;
    const int32_t *                              demand_;
    std::vector<Row>                             learned_;
    std::array<std::vector<Row>, n_most_sources> marked_;
    std::vector<float>                           came_, chance_, odds_, mean_; // [N] of one layer
};

// Updates the state, and writes the plan: priority[L, N] in units of 2^-20, and threshold[L]. Whole layers have
// priorities above all others. Throws InputError for a route to an expert that does not exist, before it changes
// anything.
void logistic_step(const LogisticState & state, const LogisticOptions & options, const LogisticStep & step,
                   int32_t * priority, int32_t * threshold);

} // namespace spac
